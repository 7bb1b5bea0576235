// What the tokenizers withstand: a first line that is a text, and a tokenizer.json after it, end in tokens that cover
// the text, or in an Error.
#include "hotswap/base/error.h"
#include "hotswap/base/fuzz_support.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

using test_support::must;

void fuzz_tokenizer(const std::string& input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view text = std::string_view(input).substr(0, end);
  try {
    const Tokenizer tokenizer =
        Tokenizer::from_json(std::string_view(input).substr(std::min(end + 1, input.size())), "f");
    const Encoding encoding = tokenizer.encode(text);
    must(encoding.ids == tokenizer.ids(text), "ids do not depend on what else is returned");
    for (const auto& [begin, stop] : encoding.offsets)
      must(begin >= 0 && begin <= stop && stop <= static_cast<int64_t>(text.size()), "offsets are of the text");
    tokenizer.decode(encoding.ids);
    tokenizer.encode_pair(text, text, {.truncation = tokenizer.truncation(), .padding = tokenizer.padding()});
  } catch (const Error&) {  // the only way out but a value
  }
}

constexpr test_support::FuzzTarget kTokenizerFuzz[] = {{"tokenizer", fuzz_tokenizer}};

}  // namespace
}  // namespace hotswap

HOTSWAP_FUZZ_TARGETS(tokenizers, kTokenizerFuzz)
