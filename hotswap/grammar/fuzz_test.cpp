// What the readers of schemas, patterns and GBNF withstand: a first line that is schema, regex or gbnf, and the text
// after it, end in a grammar or in an Error.
#include "hotswap/base/error.h"
#include "hotswap/base/fuzz_support.h"
#include "hotswap/base/json.h"
#include "hotswap/grammar/gbnf.h"
#include "hotswap/grammar/regex_rules.h"
#include "hotswap/grammar/schema_rules.h"
#include "hotswap/grammar/schema_validator.h"

namespace hotswap {
namespace {

using test_support::must;

std::string grammar_of(const std::string& kind, const std::string& text) {
  if (kind == "regex") return grammar::Rules().print(grammar::regex_expr(text, {}));
  if (kind == "gbnf") return grammar::checked_gbnf(text);
  return grammar::schema_grammar(Json::parse(text, "f").raw());
}

void fuzz_grammar(const std::string& input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string kind = input.substr(0, end), text = input.substr(std::min(end + 1, input.size()));
  try {
    const std::string rules = grammar_of(kind, text);
    must(rules.empty() || rules.starts_with("root ::= "), "a grammar begins with its root");
    if (kind == "gbnf") must(!grammar::checked_gbnf(rules).empty(), "what was written is read again");
    if (kind == "schema") grammar::answer_problem(Json::parse(text, "f").raw(), text);
  } catch (const Error&) {  // the only way out but a value
  }
}

constexpr test_support::FuzzTarget kGrammarFuzz[] = {{"grammar", fuzz_grammar}};

}  // namespace
}  // namespace hotswap

HOTSWAP_FUZZ_TARGETS(grammar, kGrammarFuzz)
