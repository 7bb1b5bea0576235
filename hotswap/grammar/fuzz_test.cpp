// What the readers of schemas, patterns and GBNF withstand: a first line that is schema, regex or gbnf, and the text
// after it, end in a grammar or in an Error. Built with HOTSWAP_FUZZ_TARGET it is a libFuzzer program (`./x check
// --fuzz`); in the tests it runs over the inputs that are kept in hotswap/grammar/fuzz/grammar/.
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
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

void run(const std::string& input) {
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

}  // namespace
}  // namespace hotswap

#ifdef HOTSWAP_FUZZ_TARGET

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hotswap::run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

#include <gtest/gtest.h>

namespace hotswap {
namespace {

TEST(GrammarFuzzCorpus, EveryKeptInputEndsInAValueOrAnError) {
  const int inputs = test_support::each_kept_input(HOTSWAP_SOURCE_DIR "/hotswap/grammar/fuzz/grammar",
                                                   [](const std::filesystem::path& file) {
                                                     SCOPED_TRACE(file.string());
                                                     run(read_file(file));
                                                   });
  EXPECT_GT(inputs, 0);
}

}  // namespace
}  // namespace hotswap

#endif
