// What chat templates withstand: any text ends in a rendering within the limits, or in a TemplateError.
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

void fuzz_template(const std::string& source) {
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

constexpr test_support::FuzzTarget kTemplateFuzz[] = {{"template", fuzz_template}};

}  // namespace
}  // namespace hotswap

HOTSWAP_FUZZ_TARGETS(chat, kTemplateFuzz)
