// Grammars that are not of schemas: the library itself, patterns, GBNF, bounds of values.
#include "hotswap/grammar/gbnf.h"
#include "hotswap/grammar/number_rules.h"
#include "hotswap/grammar/regex_rules.h"
#include "hotswap/grammar/test_grammar.h"
#include "hotswap/grammar/tvm_ffi.h"

namespace hotswap {
namespace {

using namespace grammar;
using test_support::byte_tokens;
using test_support::expect_has;
using test_support::kEndOfBytes;
using test_support::message_of;
using test_support::ScopedEnv;
using test_support::TempFolder;

class Xgrammar : public test_support::WithXgrammar {};
class Patterns : public test_support::WithXgrammar {};
class Gbnf : public test_support::WithXgrammar {};
class Bounds : public test_support::WithXgrammar {};

TEST(XgrammarFolder, AReasonWhereThereIsNone) {
  const TempFolder empty;
  const ScopedEnv env("HOTSWAP_GRAMMAR", empty.path().string());
  expect_has(find_xgrammar().why(), {"libxgrammar_bindings.so", "pip install"});
  empty.write("xgrammar/libxgrammar_bindings.so", "");
  empty.write("tvm_ffi/lib/libtvm_ffi.so", "");
  empty.write("xgrammar/_version.py", "__version__ = version = '9.9.9'\n");
  expect_has(find_xgrammar().why(), {"9.9.9", "0.2.9"});
  empty.write("xgrammar/_version.py", "__version__ = version = '0.2.9'\n");
  ASSERT_TRUE(find_xgrammar());
  expect_has(message_of([&] { load_xgrammar(empty.path(), byte_tokens()); }), {"expected a library that loads"});
}

TEST_F(Xgrammar, CountsOfArgumentsAreChecked) {
  const auto folder = *find_xgrammar();
  const auto library =
      FfiLibrary::load(folder / "tvm_ffi/lib/libtvm_ffi.so", folder / "xgrammar/libxgrammar_bindings.so");
  const std::string type = "xgrammar.tvm_ffi_binding.GrammarMatcher";
  EXPECT_NE(library->method(type, "accept_token", 3), nullptr);
  expect_has(message_of([&] { library->method(type, "accept_token", 4); }), {"with 4 arguments", "one with 3"});
  expect_has(message_of([&] { library->method(type, "refuse_token", 1); }), {"no such method"});
  expect_has(message_of([&] { library->method("xgrammar.None", "accept_token", 1); }), {"no such type"});
}

TEST_F(Xgrammar, AMaskHasWhatMayFollowAndNothingElse) {
  const auto matcher = engine->compile("root ::= \"ab\" | \"ac\"")->matcher();
  std::vector<int32_t> words(9);
  const auto only = [&](std::vector<int> ids) {
    matcher->allowed(words);
    std::vector<int> found;
    for (int id = 0; id <= kEndOfBytes; ++id) {
      if (words[id / 32] >> (id % 32) & 1) found.push_back(id);
    }
    return found == ids;
  };
  EXPECT_TRUE(only({'a'}));
  EXPECT_FALSE(matcher->accept('b'));
  EXPECT_FALSE(matcher->accept(kEndOfBytes)) << "no end within";
  EXPECT_TRUE(matcher->accept('a'));
  EXPECT_TRUE(only({'b', 'c'}));
  EXPECT_TRUE(matcher->accept('c'));
  EXPECT_TRUE(only({kEndOfBytes}));
  EXPECT_FALSE(matcher->ended());
  EXPECT_TRUE(matcher->accept(kEndOfBytes));
  EXPECT_TRUE(matcher->ended());
  EXPECT_FALSE(matcher->accept('a'));
  EXPECT_TRUE(only({}));
  expect_has(message_of([&] { engine->compile("root = nonsense"); }), {"expected a grammar that xgrammar takes"});
}

class PatternTexts : public Patterns {
 protected:
  bool has(const std::string& pattern, const std::string& text) const {
    Rules rules;
    return takes(rules.print(regex_expr(pattern, {})), text);
  }
};

TEST_F(PatternTexts, MatchWholeTexts) {
  for (const auto& [pattern, yes, no] :
       std::vector<std::array<std::string, 3>>{{"a|bc*", "bcc", "ab"},
                                               {"(a|b){2,3}", "bab", "a"},
                                               {"[^a-c\\]x-]", "d", "]"},
                                               {"\\d+\\.\\d{2}", "12.50", "12.5"},
                                               {"^(?:yes|no)$", "no", "maybe"},
                                               {"(?P<word>\\w+) (?<other>\\S)", "ab_1 !", "ab 1 "},
                                               {"\\u00e9[\\x41-\\x43]?", "\u00e9B", "eB"},
                                               {".\\n", "\U0001F600\n", "\n\n"},
                                               {"a*?b", "aab", "aa"},
                                               {"\\[\\^\\$\\*", "[^$*", "[^$"}}) {
    EXPECT_TRUE(has(pattern, yes)) << pattern << " " << yes;
    EXPECT_FALSE(has(pattern, no)) << pattern << " " << no;
  }
}

TEST(PatternErrors, NameWhatIsNotRead) {
  for (const auto& [pattern, what] :
       std::vector<std::pair<std::string, std::string>>{{"(?=a)b", "look-around"},
                                                        {"(?<!a)b", "look-around"},
                                                        {"\\bword", "the escape \\b"},
                                                        {"(a)\\1", "the escape \\1"},
                                                        {"\\p{L}", "the escape \\p"},
                                                        {"(a", "without its )"},
                                                        {"a)", "without its ("},
                                                        {"[a", "without its ]"},
                                                        {"a**", "a repetition of"},
                                                        {"a{3,1}", "below its minimum"},
                                                        {"*a", "a * where"},
                                                        {"a{", "a { that begins"},
                                                        {"[z-a]", "a range"},
                                                        {"a{99999}", "more than"},
                                                        {"(a{5000}){5000}", "multiplied"},
                                                        {"(^a)b", "a ^ where"},
                                                        {"\\ud800", "half"},
                                                        {"[[:alpha:]]", "a named class"},
                                                        {std::string(200, '(') + "a", "nested deeper"}}) {
    expect_has(message_of([&] { regex_expr(pattern, {}); }), {what});
  }
}

TEST_F(Gbnf, IsReadAndWrittenAgain) {
  const std::string grammar = R"(# a comment
root ::= greeting " " name   # another
  | "-"
greeting ::= "Hello" | ("Bye" |
  "\u00e9\x41\n")
name ::= [A-Z] [a-z]{1,3} [^a-z\]]?
)";
  const std::string checked = checked_gbnf(grammar);
  for (const char* text : {"Hello Ab", "Bye Abcd", "-", "\u00e9A\n Xy!"}) EXPECT_TRUE(takes(checked, text)) << text;
  for (const char* text : {"Hello ", "Bye Abcdef", "", "hello Ab", "Hello Ab]"})
    EXPECT_FALSE(takes(checked, text)) << text;
}

// Rules of the same name, and names within literals and classes.
TEST_F(Gbnf, OneOrTheOther) {
  const std::string either = grammar::either_gbnf(checked_gbnf("root ::= x* \"root x_0 \\\" ::= [\" \nx ::= [a-c\\]]"),
                                                  checked_gbnf("root ::= \"{\" x{2} \"}\"\nx ::= [x-z]"));
  for (const char* text : {"ab]root x_0 \" ::= [", "root x_0 \" ::= [", "{xz}"})
    EXPECT_TRUE(takes(either, text)) << text;
  for (const char* text : {"", "xroot x_0 \" ::= [", "{ab}", "{xz}root x_0 \" ::= ["}) {
    EXPECT_FALSE(takes(either, text)) << text;
  }
}

TEST_F(Gbnf, RulesThatReferToThemselves) {
  EXPECT_TRUE(takes(checked_gbnf("root ::= root \"a\" | \"b\""), "baaa"));
  EXPECT_TRUE(takes(checked_gbnf("root ::= \"(\" root \")\" | \"\""), "((()))"));
  EXPECT_TRUE(takes(checked_gbnf("root ::= x* \".\"\nx ::= \"a\" | \"\""), "aa."));
  // What matches nothing is left out, so that a matcher does not begin what it cannot end.
  EXPECT_FALSE(takes(checked_gbnf("root ::= \"a\" never | \"b\"\nnever ::= \"c\" never"), "a"));
}

TEST(GbnfErrors, NameWhatIsWrong) {
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "no rule root"},
           {"start ::= \"a\"", "no rule root"},
           {"root ::= missing", "no rule missing"},
           {"root ::= \"a", "a \" without its end"},
           {"root ::= [a", "a [ without its ]"},
           {"root ::= (\"a\"", "a ( without its )"},
           {"root ::= \"a\" )", "where the rule was expected to end"},
           {"root ::= root \"a\"", "matches no text"},
           {"root ::= \"a\"{99999}", "more than"},
           {"root ::= \"a\"\nroot ::= \"b\"", "a second rule root (line 2)"},
           {"root = \"a\"", "no ::="},
           {"root ::= \"\\q\"", "the escape"},
           {"root ::= " + std::string(100, '(') + "\"a\"", "nested deeper"},
           {std::string(70000, 'a'), "at most"}}) {
    expect_has(message_of([&] { checked_gbnf(text); }), {"expected a grammar of rules", what});
  }
}

// Every value within is a text of the grammar, every value outside is none.
TEST_F(Bounds, OfIntegers) {
  std::mt19937_64 random(test_support::test_seed() + 1);
  for (int i = 0; i < 60; ++i) {
    const int64_t span = i % 2 == 0 ? 150 : 3000;
    const int64_t a = static_cast<int64_t>(random() % (2 * span)) - span, b = a + static_cast<int64_t>(random() % span);
    Rules rules;
    const bool exclusive = i % 3 == 0 && b - a >= 2;
    const NumberBounds bounds{.min = {{static_cast<double>(a) - (exclusive ? 1 : 0), exclusive}},
                              .max = {{static_cast<double>(b) + (exclusive ? 0.5 : 0), exclusive}}};
    const auto compiled = engine->compile(rules.print(integer_expr(bounds)));
    for (int64_t value = a - 40; value <= b + 40; value += 1 + static_cast<int64_t>(random() % (span / 30))) {
      const auto matcher = compiled->matcher();
      bool taken = true;
      for (const char c : std::to_string(value)) taken = taken && matcher->accept(static_cast<unsigned char>(c));
      taken = taken && matcher->accept(kEndOfBytes);
      EXPECT_EQ(taken, value >= a && value <= b) << value << " of " << a << " to " << b;
    }
  }
}

TEST_F(Bounds, OfFractions) {
  const auto has = [&](const NumberBounds& bounds, const std::string& text) {
    Rules rules;
    return takes(rules.print(number_expr(bounds)), text);
  };
  const NumberBounds unit{.min = {{0, true}}, .max = {{1, false}}};
  for (const char* text : {"1", "0.5", "0.000001", "1.000"}) EXPECT_TRUE(has(unit, text)) << text;
  for (const char* text : {"0", "0.0", "1.1", "-0.5", "2", "00.5", ".5", "1e0"}) EXPECT_FALSE(has(unit, text)) << text;
  const NumberBounds low{.min = {{-1.25, false}}, .max = {{-0.75, true}}};
  for (const char* text : {"-1.25", "-1", "-0.76"}) EXPECT_TRUE(has(low, text)) << text;
  for (const char* text : {"-1.26", "-0.75", "0", "1"}) EXPECT_FALSE(has(low, text)) << text;
  EXPECT_TRUE(has({}, "-12.5e-10"));
  EXPECT_FALSE(has({}, "01"));
  Rules rules;
  EXPECT_EQ(rules.print(number_expr({.min = {{5, true}}, .max = {{5, false}}})), "") << "no value";
  EXPECT_EQ(rules.print(integer_expr({.min = {{0.2, false}}, .max = {{0.8, false}}})), "");
}

}  // namespace
}  // namespace hotswap
