// What the readers of requests and of models' answers withstand: any body ends in a request or in a refusal that is
// the client's own fault, and any text of a model is cut into the same parts however it comes.
#include "hotswap/base/error.h"
#include "hotswap/base/fuzz_support.h"
#include "hotswap/serve/answer_rules.h"
#include "hotswap/serve/chat_messages.h"
#include "hotswap/serve/message_parser.h"
#include "hotswap/serve/python_literal.h"

namespace hotswap {
namespace {

using test_support::must;
using FuzzJson = nlohmann::ordered_json;

// One template that shows tools, in each form of calls in its turn.
const ChatTemplate& fuzz_template() {
  static const ChatTemplate made(
      {{"default",
        "{# <tool_call> #}{{ tools | tojson }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ "
        "m.reasoning_content }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
        "{% endfor %}{{ documents | tojson }}{% if add_generation_prompt %}<|assistant|>{% endif %}"}},
      FuzzJson::object());
  return made;
}

// Each reader by itself, so that what one refuses is still read by the others. A refusal is 4xx, or 501.
template <class Read>
void or_refusal(const Read& read) {
  try {
    read();
  } catch (const serve::ApiError& error) {
    must((error.status >= 400 && error.status < 500) || error.status == 501, "a bad request is the client's fault");
    must(FuzzJson::parse(error.json())["error"]["message"].is_string(), "a refusal is JSON");
  }
}

void fuzz_request(const std::string& text) {
  or_refusal([&] {
    serve::RequestBody body(text);
    or_refusal([&] { serve::read_answer_rules(body); });
    or_refusal([&] {
      const serve::ChatFields fields = serve::read_chat_fields(body, fuzz_template());
      body.guarded("messages", [&] { return fuzz_template().render(fields.request); });
      if (fields.tools.choice == serve::ToolChoice::kNone) return;
      serve::typed_parameters(fields.tools.tools);
      must(!serve::tool_rules(fields.tools).ebnf.empty(), "calls have a grammar");
    });
  });
}

struct FuzzMessage {
  std::vector<serve::MessagePart> parts;
  size_t calls = 0;
  int64_t unparsed = 0;
};

FuzzMessage parsed_message(const serve::MessageRules& rules, std::string_view text, size_t step) {
  serve::MessageParser parser(rules);
  FuzzMessage out;
  const auto add = [&](const std::vector<serve::MessagePart>& parts) {
    for (const serve::MessagePart& part : parts) serve::add_part(out.parts, part);
  };
  for (size_t at = 0; at < text.size(); at += step) add(parser.push(text.substr(at, step)));
  add(parser.finish());
  out.calls = parser.calls();
  out.unparsed = parser.unparsed();
  return out;
}

bool same_parts(const std::vector<serve::MessagePart>& a, const std::vector<serve::MessagePart>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& left, const auto& right) {
    return left.kind == right.kind && left.text == right.text && left.call == right.call;
  });
}

// The first byte is the form of calls and whether the text begins in thoughts.
void fuzz_message(const std::string& input) {
  if (input.empty()) return;
  const auto head = static_cast<uint8_t>(input[0]);
  const auto& formats = serve::tool_formats();
  const size_t format = (head >> 2) % (formats.size() + 1);
  const serve::MessageRules rules{.thinking = (head & 1) != 0,
                                  .thoughts = (head & 2) != 0,
                                  .format = format < formats.size() ? &formats[format] : nullptr,
                                  .tools = {"f", "get_weather"},
                                  .typed = {{"f", {"a", "n"}}}};
  const std::string_view text = std::string_view(input).substr(1);
  const FuzzMessage whole = parsed_message(rules, text, std::max<size_t>(text.size(), 1));
  const FuzzMessage slow = parsed_message(rules, text, 1);
  must(same_parts(whole.parts, slow.parts), "a message does not depend on how its text comes");
  must(whole.calls == slow.calls && whole.unparsed == slow.unparsed, "calls are counted however they come");
  if (const auto json = serve::json_of_python(text)) must(FuzzJson::accept(*json), "a Python value becomes JSON");
}

constexpr test_support::FuzzTarget kServeFuzz[] = {{"request", fuzz_request}, {"message", fuzz_message}};

}  // namespace
}  // namespace hotswap

HOTSWAP_FUZZ_TARGETS(serve, kServeFuzz)
