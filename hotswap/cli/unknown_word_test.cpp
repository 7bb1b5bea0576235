// Each verb's line with one word mistyped: the message names the word and what was meant, whatever else is wrong.
#include "hotswap/cli/flags/unknown_word.h"

#include <gtest/gtest.h>

#include "hotswap/base/error.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

struct Verb {
  std::string line;                // "kernel list"
  std::vector<std::string> flags;  // "--json"
};

void add_flags_of(const CLI::App& app, std::vector<std::string>& flags) {
  for (const CLI::Option* option : app.get_options([](const CLI::Option* one) { return !one->get_group().empty(); }))
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  for (const CLI::App* group : app.get_subcommands([](const CLI::App* sub) { return sub->get_name().empty(); }))
    add_flags_of(*group, flags);
}

void add_verbs_below(const CLI::App& app, const std::string& line, std::vector<Verb>& verbs) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); })) {
    Verb verb{.line = line + sub->get_name()};
    add_flags_of(*sub, verb.flags);
    verbs.push_back(verb);
    add_verbs_below(*sub, verb.line + " ", verbs);
  }
}

struct WordLine : CLI::App {
  WordLine() : CLI::App("", "hotswap") {
    require_subcommand(1);
    set_help_and_failures(*this);
    add_verbs(*this, HOTSWAP_SOURCE_DIR);
  }
};

std::vector<Verb> all_verbs() {
  std::vector<Verb> verbs;
  add_verbs_below(WordLine(), "", verbs);
  return verbs;
}

// What a person reads; "" where the line parses. No verb of these lines may run.
std::string answer_to(const std::string& line) {
  WordLine app;
  try {
    app.parse(line);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, err;
    app.exit(error, out, err);
    return err.str();
  }
  return "";
}

// The last two letters swapped, or the last one dropped where they are equal.
std::string mistyped(std::string word) {
  const size_t last = word.size() - 1;
  if (word[last] == word[last - 1]) return word.substr(0, last);
  std::swap(word[last], word[last - 1]);
  return word;
}

TEST(UnknownWord, IsNamedForEveryFlagOfEveryVerb) {
  const auto verbs = all_verbs();
  ASSERT_GT(verbs.size(), 35u);
  for (const Verb& verb : verbs) {
    EXPECT_FALSE(verb.flags.empty()) << verb.line;
    for (const std::string& flag : verb.flags) {
      const std::string wrong = mistyped(flag);
      for (const char* rest : {"", " value", "=value"}) {
        const std::string line = cat(verb.line, " ", wrong, rest);
        EXPECT_EQ(answer_to(line),
                  cat("expected a flag of `hotswap ", verb.line, "`; got ", wrong, "; did you mean ", flag, "?\n"))
            << line;
      }
    }
  }
}

TEST(UnknownWord, IsNamedForEveryVerb) {
  for (const Verb& verb : all_verbs()) {
    const size_t last = verb.line.rfind(' ') + 1;
    const std::string before = verb.line.substr(0, last), name = verb.line.substr(last);
    if (before == "bench ") continue;  // whose words are names of ops
    const std::string line = before + mistyped(name);
    EXPECT_EQ(answer_to(line),
              cat("expected a verb of `hotswap", before.empty() ? "" : " ", before.substr(0, last - (last > 0)),
                  "`; got ", mistyped(name), "; did you mean ", name, "?\n"))
        << line;
  }
}

TEST(UnknownWord, ComesBeforeOtherRules) {
  EXPECT_NE(answer_to("generate --promt x MODEL").find("did you mean --prompt?"), std::string::npos);
  EXPECT_NE(answer_to("generate MODEL --prompt a --dtype float12 --sead 1").find("did you mean --seed?"),
            std::string::npos);
  EXPECT_NE(answer_to("genrate MODEL --prompt a").find("did you mean generate?"), std::string::npos);
  EXPECT_NE(answer_to("--device cpu chat MODEL").find("--device after `hotswap chat`"), std::string::npos);
  EXPECT_NE(answer_to("generate MODEL --prompt Gravity is").find("got is; quote"), std::string::npos);
  const std::string far = answer_to("chat --nothing-like-it");
  EXPECT_NE(far.find("`hotswap chat --help` lists"), std::string::npos) << far;
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
}

TEST(UnknownWord, IsNoneWhereEveryWordIsKnown) {
  EXPECT_NE(answer_to("generate MODEL").find("--prompt"), std::string::npos) << "CLI11's own words";
  EXPECT_EQ(answer_to("generate MODEL").find("expected"), std::string::npos);
}

// "--model,model" is required once: by its word or by its flag.
TEST(Help, MarksAnArgumentAsRequiredOnce) {
  for (const char* verb : {"merge", "generate", "quantize", "score", "tokenize", "download", "serve"}) {
    WordLine app;
    const std::string help = app.get_subcommand(verb)->help();
    size_t at = help.find("\n  --model DIR");
    if (at == help.npos) at = help.find("\n  --model ");
    ASSERT_NE(at, help.npos) << help;
    EXPECT_EQ(help.substr(at, help.find('\n', at + 1) - at).find("REQUIRED"), help.npos) << help;
    at = help.find("\n  model ");
    ASSERT_NE(at, help.npos) << help;
    EXPECT_NE(help.substr(at, help.find("\n", at + 1) - at).find("REQUIRED"), help.npos) << help;
    EXPECT_NE(help.find("or by --model"), help.npos) << help;
  }
}

}  // namespace
}  // namespace hotswap
