// What the tokenizers withstand: a first line that is a text, and a tokenizer.json after it, end in tokens that cover
// the text, or in an Error. Built with HOTSWAP_FUZZ_TARGET it is a libFuzzer program (`./x check --fuzz`); in the tests
// it runs over the inputs that are kept in hotswap/tokenizers/fuzz/tokenizer/.
#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/fuzz_support.h"
#include "hotswap/base/log.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

using test_support::must;

void run(const std::string& input) {
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

}  // namespace
}  // namespace hotswap

#ifdef HOTSWAP_FUZZ_TARGET

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hotswap::set_log_level(hotswap::LogLevel::kError);
  hotswap::run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

#include <gtest/gtest.h>

namespace hotswap {
namespace {

TEST(TokenizerFuzzCorpus, EveryKeptInputEndsInAValueOrAnError) {
  const int inputs = test_support::each_kept_input(HOTSWAP_SOURCE_DIR "/hotswap/tokenizers/fuzz/tokenizer",
                                                   [](const std::filesystem::path& file) {
                                                     SCOPED_TRACE(file.string());
                                                     run(read_file(file));
                                                   });
  EXPECT_GT(inputs, 0);
}

}  // namespace
}  // namespace hotswap

#endif
