#include "hotswap/grammar/regex_rules.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "hotswap/base/error.h"
#include "hotswap/grammar/cursor.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::grammar {
namespace {

constexpr int kMaxRegexGroups = 64;         // one in another
constexpr int64_t kMaxRegexRepeat = 10000;  // of one count
constexpr int64_t kMaxWeight = 1000000;     // of all counts, one in another multiplied
constexpr size_t kMaxPattern = 4096;

const CodePoints kDigitClass = {{'0', '9'}};
const CodePoints kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePoints kSpace = {{'\t', '\r'}, {' ', ' '}};
const CodePoints kPrintable = {{' ', '~'}};  // a negated class stays within ASCII: \D has no digits of other scripts

CodePoints without(const CodePoints& all, const CodePoints& set) {
  CodePoints others = complement(all);
  others.insert(others.end(), set.begin(), set.end());
  return complement(others);
}

class Parser : private Cursor {
 public:
  Parser(const std::string& pattern, const RegexTarget& target) : Cursor(pattern), target_(target) {}

  ExprPtr whole() {
    if (text_.size() > kMaxPattern) fail(cat("a pattern of ", text_.size(), " bytes; ", kMaxPattern, " at most"));
    if (tokenizers::find_invalid_utf8(text_) != std::string::npos) fail("a pattern that is not UTF-8");
    const Weighted all = alternatives(/*top=*/true);
    if (at_ < text_.size()) fail("a ) without its (");
    return all.expr;
  }

 private:
  struct Weighted {
    ExprPtr expr;
    int64_t weight = 1;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a pattern of characters, classes, groups and repetitions, with ^ and $ at its ends",
                 .got = cat(what, " in ", text_.substr(0, 80)),
                 .next = "rewrite the regular expression without it"});
  }
  char32_t take_code_point() {
    if (!more()) fail("a pattern that ends too early");
    const auto [value, size] = tokenizers::code_point_at(text_, at_);
    at_ += size;
    return value;
  }

  // top: not within a group; ^ and $ may be there only
  Weighted alternative(bool top) {
    std::vector<ExprPtr> parts;
    int64_t weight = 0;
    bool begins = false, ends = false;
    while (top && take('^')) begins = true;
    while (more() && peek() != '|' && peek() != ')') {
      if (top && peek() == '$' && (at_ + 1 == text_.size() || peek(1) == '|')) {
        ++at_;
        ends = true;
        break;
      }
      const Weighted part = repeated();
      parts.push_back(part.expr);
      weight += part.weight;
    }
    if (top && target_.around && !begins) parts.insert(parts.begin(), target_.around);
    if (top && target_.around && !ends) parts.push_back(target_.around);
    return {sequence(std::move(parts)), std::max<int64_t>(weight, 1)};
  }

  Weighted alternatives(bool top) {
    std::vector<ExprPtr> all;
    int64_t weight = 0;
    do {
      const Weighted one = alternative(top);
      all.push_back(one.expr);
      weight += one.weight;
    } while (take('|'));
    return {choice(std::move(all)), weight};
  }

  Weighted repeated() {
    Weighted one = atom();
    const auto counts = quantifier();
    if (!counts) return one;
    const auto [min, max] = *counts;
    take('?');  // lazy: the same texts match
    if (peek() == '+' || peek() == '*' || peek() == '?') fail("a repetition of a repetition");
    one.weight *= std::max<int64_t>(1, std::max(min, max));
    if (one.weight > kMaxWeight) fail("repetitions that are too many when multiplied");
    one.expr = repeat(one.expr, min, max);
    return one;
  }

  using Counts = std::pair<int64_t, int64_t>;
  std::optional<Counts> quantifier() {
    if (take('*')) return Counts{0, kNoMax};
    if (take('+')) return Counts{1, kNoMax};
    if (take('?')) return Counts{0, 1};
    if (!take('{')) return std::nullopt;
    const auto min = count();
    auto max = min;
    if (take(',')) max = peek() == '}' ? kNoMax : count();
    if (!min || !max || !take('}')) fail("a { that begins no repetition");
    if (*max != kNoMax && *max < *min) fail("a repetition whose maximum is below its minimum");
    return Counts{*min, *max};
  }
  std::optional<int64_t> count() {
    const size_t begin = at_;
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > kMaxRegexRepeat) fail(cat("a repetition of more than ", kMaxRegexRepeat));
    }
    return at_ > begin ? std::optional(value) : std::nullopt;
  }

  Weighted atom() {
    if (take('(')) return group();
    if (take('[')) return {target_.character(bracket())};
    if (take('.')) {
      return {target_.character(complement({{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}}))};
    }
    if (take('\\')) return {target_.character(escape())};
    for (const char c : std::string_view("^$*+?{}]")) {
      if (peek() == c) fail(cat("a ", c, " where a character was expected"));
    }
    const char32_t c = take_code_point();
    return {target_.character(one(c))};
  }

  Weighted group() {
    if (++depth_ > kMaxRegexGroups) fail(cat("groups nested deeper than ", kMaxRegexGroups));
    if (take('?') && !take(':')) {
      take('P');
      if (peek() != '<' || peek(1) == '=' || peek(1) == '!') fail("a look-around or a flag");
      while (more() && peek() != '>') ++at_;
      if (!take('>')) fail("a group's name without its end");
    }
    const Weighted inside = alternatives(/*top=*/false);
    if (!take(')')) fail("a ( without its )");
    --depth_;
    return inside;
  }

  // After a backslash.
  CodePoints escape() {
    const char c = peek();
    if (more()) ++at_;
    switch (c) {
      case 'd':
        return kDigitClass;
      case 'w':
        return kWord;
      case 's':
        return kSpace;
      case 'D':
        return without(kPrintable, kDigitClass);
      case 'W':
        return without(kPrintable, kWord);
      case 'S':
        return without(kPrintable, kSpace);
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(hex(2));
      case 'u':
        return one(hex(4));
      default:
        break;
    }
    const bool plain = c > ' ' && c < 0x7F && !std::isalnum(static_cast<unsigned char>(c));
    if (!plain) fail(cat("the escape \\", c == '\0' ? ' ' : c));
    return one(static_cast<char32_t>(c));
  }
  static CodePoints one(char32_t c) { return {{c, c}}; }
  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      if (!std::isxdigit(static_cast<unsigned char>(c))) fail("an escape with too few hexadecimal digits");
      value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (value >= 0xD800 && value <= 0xDFFF) fail("half a surrogate pair");
    return value;
  }

  CodePoints bracket() {
    const bool negated = take('^');
    CodePoints set;
    bool classes = false;  // like \d, whose members of other scripts must not get in by negation
    if (peek() == ']') fail("an empty class");
    while (!take(']')) {
      if (!more()) fail("a [ without its ]");
      if (peek() == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '=')) fail("a named class");
      for (const char c : std::string_view("&-|~")) {
        if (peek() == c && peek(1) == c) fail(cat("the operator ", c, c));
      }
      classes = classes || (peek() == '\\' && std::string_view("dDwWsS").find(peek(1)) != std::string_view::npos);
      const CodePoints first = member();
      if (peek() != '-' || peek(1) == ']') {
        set.insert(set.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      const CodePoints last = member();
      const bool range = first.size() == 1 && last.size() == 1 && first[0].first == first[0].second &&
                         last[0].first == last[0].second && first[0].first <= last[0].first;
      if (!range) fail("a range that is none");
      set.emplace_back(first[0].first, last[0].first);
    }
    if (!negated) return merged(std::move(set));
    return classes ? without(kPrintable, set) : complement(std::move(set));
  }
  CodePoints member() {
    if (take('\\')) {
      if (take('b')) return one('\b');
      return escape();
    }
    return one(take_code_point());
  }

  const RegexTarget& target_;
  int depth_ = 0;
};

}  // namespace

ExprPtr regex_expr(const std::string& pattern, const RegexTarget& target) { return Parser(pattern, target).whole(); }

}  // namespace hotswap::grammar
