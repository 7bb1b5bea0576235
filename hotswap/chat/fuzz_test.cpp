// What chat templates withstand: any text ends in a rendering within the limits, or in a TemplateError. Built with
// HOTSWAP_FUZZ_TARGET it is a libFuzzer program (`./x check --fuzz`); in the tests it runs over the inputs that are
// kept in hotswap/chat/fuzz/template/.
#include "hotswap/base/file.h"
#include "hotswap/base/fuzz_support.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/template.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap {
namespace {

using test_support::must;

// A tenth of what is allowed, and less where a template can be slow: an input takes a moment.
constexpr jinja::Limits kLimits = {.nodes = 200'000,
                                   .string_bytes = 1 << 20,
                                   .value_bytes = 8 << 20,
                                   .output_bytes = 1 << 20,
                                   .time = std::chrono::milliseconds(2000)};

const nlohmann::ordered_json& context() {
  static const auto made = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be\nshort."}, {"role": "user", "content": [{"type": "text", "text": "é <a>"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "big": 123456789012345678, "x": {"items": 3}})");
  return made;
}

void run(const std::string& source) {
  try {
    const jinja::Template compiled(source, kLimits);
    const jinja::Rendered rendered = compiled.render(context());
    must(rendered.text.size() <= kLimits.output_bytes, "a text is within its limit");
    must(tokenizers::find_invalid_utf8(rendered.text) == std::string::npos, "a text is UTF-8");
    size_t at = 0;
    for (const auto& [begin, end] : rendered.generations) {
      must(at <= begin && begin <= end && end <= rendered.text.size(), "spans are of the text, in order");
      at = begin;
    }
  } catch (const jinja::TemplateError&) {  // the only way out but a text
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

TEST(ChatFuzzCorpus, EveryKeptInputEndsInATextOrAnError) {
  const int inputs = test_support::each_kept_input(HOTSWAP_SOURCE_DIR "/hotswap/chat/fuzz/template",
                                                   [](const std::filesystem::path& file) {
                                                     SCOPED_TRACE(file.string());
                                                     run(read_file(file));
                                                   });
  EXPECT_GT(inputs, 0);
}

}  // namespace
}  // namespace hotswap

#endif
