// Calls of tools and thoughts: reading them from a text however it is cut, and over HTTP.
#include "hotswap/grammar/schema_validator.h"
#include "hotswap/grammar/xgrammar.h"
#include "hotswap/serve/message_parser.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using serve::MessageParser;
using serve::MessagePart;
using serve::MessageRules;
using serve::ToolFormat;
using test_support::expect_has;
using test_support::OutJson;
using Kind = MessagePart::Kind;

constexpr ToolFormat kHermes = {"hermes", "", "<tool_call>", "</tool_call>", "arguments", false};
constexpr ToolFormat kMistral = {"mistral", "", "[TOOL_CALLS]", "", "arguments", true};
constexpr ToolFormat kBare = {"llama3_json", "", "", "", "parameters", false};

struct Read {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  int64_t unparsed = 0;
  bool operator==(const Read&) const = default;
};

Read read(const MessageRules& rules, const std::vector<std::string>& pieces) {
  MessageParser parser(rules);
  Read out;
  const auto add = [&](const std::vector<MessagePart>& parts) {
    for (const MessagePart& part : parts) {
      if (part.kind == Kind::kContent) out.content += part.text;
      if (part.kind == Kind::kReasoning) out.reasoning += part.text;
      if (part.kind == Kind::kCall) {
        EXPECT_EQ(part.call, out.calls.size());
        out.calls.emplace_back(part.text, "");
      }
      if (part.kind == Kind::kArguments) out.calls.at(part.call).second += part.text;
    }
  };
  for (const std::string& piece : pieces) add(parser.push(piece));
  add(parser.finish());
  out.unparsed = parser.unparsed();
  return out;
}

// Whole, byte by byte, and cut in three at random: the same.
Read read(const MessageRules& rules, const std::string& text) {
  const Read whole = read(rules, std::vector<std::string>{text});
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  const Read slow = read(rules, bytes);
  EXPECT_TRUE(slow == whole) << text << "\n" << slow.content << "|" << whole.content;
  for (size_t cut = 1; cut + 1 < text.size(); ++cut) {
    const size_t next = cut + (text.size() - cut) / 2;
    EXPECT_TRUE(read(rules, std::vector<std::string>{text.substr(0, cut), text.substr(cut, next - cut),
                                                     text.substr(next)}) == whole)
        << cut << " of " << text;
  }
  return whole;
}

MessageRules of(const ToolFormat& format, bool thoughts = false) {
  return {.thoughts = thoughts, .format = &format, .tools = {"f", "get_weather"}};
}

using Calls = std::vector<std::pair<std::string, std::string>>;

TEST(MessageParts, CallsOfHermes) {
  const Read one =
      read(of(kHermes), "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}\n</tool_call>");
  EXPECT_EQ(one.content, "");
  EXPECT_EQ(one.calls, (Calls{{"f", "{\"a\": [1, \"}\\\"\"]}"}}));
  const Read two =
      read(of(kHermes),
           "Let me look.\n\n<tool_call>{\"arguments\":{},\"name\":\"f\"}</tool_call>\n<tool_call>\n{\"name\": "
           "\"get_weather\", \"arguments\": {\"city\": \"Z\u00fcrich\"}}\n</tool_call>\nDone.");
  EXPECT_EQ(two.content, "Let me look.\nDone.");
  EXPECT_EQ(two.calls, (Calls{{"f", "{}"}, {"get_weather", "{\"city\": \"Z\u00fcrich\"}"}}));
  EXPECT_EQ(two.unparsed, 0);
  EXPECT_EQ(read(of(kHermes), "<tool_call>{\"name\": \"f\"}</tool_call>").calls, (Calls{{"f", "{}"}}));
  EXPECT_EQ(read(of(kHermes), "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>").calls,
            (Calls{{"f", "{\"a\": 1}"}}))
      << "JSON within a text";
}

TEST(MessageParts, CallsOfTheOtherFormats) {
  const Read list = read(of(kMistral),
                         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"f\", \"arguments\": "
                         "{}, \"id\": \"x\"}]");
  EXPECT_EQ(list.calls, (Calls{{"f", "{\"a\": 1}"}, {"f", "{}"}}));
  EXPECT_EQ(list.content, "");
  EXPECT_EQ(read(of(kMistral), "plain [TOOL").content, "plain [TOOL");
  const Read bare = read(of(kBare), " {\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}");
  EXPECT_EQ(bare.calls, (Calls{{"get_weather", "{\"city\": \"Rome\"}"}}));
  EXPECT_EQ(read(of(kBare), "In {braces}: no call").content, "In {braces}: no call");
}

TEST(MessageParts, WhatIsNoCallIsContent) {
  for (const std::string text :
       {"<tool_call>\nnot JSON\n</tool_call>", "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"nam", "<tool_call>{\"name\": 3}</tool_call>", "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>[]"}) {
    const Read out = read(of(kHermes), text);
    EXPECT_EQ(out.content, text);
    EXPECT_TRUE(out.calls.empty());
    EXPECT_EQ(out.unparsed, 1) << text;
  }
  EXPECT_EQ(read(of(kBare), "{\"a\": {\"name\": 1}} is JSON").content, "{\"a\": {\"name\": 1}} is JSON");
  // Its beginning was reported already.
  const Read broken = read(of(kHermes), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru}}</tool_call>");
  EXPECT_EQ(broken.calls.size(), 1u);
  EXPECT_EQ(broken.unparsed, 1);
  EXPECT_EQ(read(of(kHermes), "a <tool b <tool_cal").content, "a <tool b <tool_cal");
  EXPECT_EQ(read(of(kHermes), " spaces stay  ").content, " spaces stay  ");
}

TEST(MessageParts, Thoughts) {
  const Read open = read({.thinking = true, .thoughts = true}, "I think < so.</think>\n\nYes.");
  EXPECT_EQ(open.reasoning, "I think < so.");
  EXPECT_EQ(open.content, "Yes.");
  const Read own = read({.thoughts = true}, "\n<think>\nhm\n</think>\nNo.");
  EXPECT_EQ(own.reasoning, "\nhm\n");
  EXPECT_EQ(own.content, "No.");
  EXPECT_EQ(read({.thoughts = true}, "<thin air").content, "<thin air");
  EXPECT_EQ(read({.thinking = true}, "never ends").reasoning, "never ends");
  const Read both =
      read(of(kHermes, true), "<think>I call f.</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
  EXPECT_EQ(both.reasoning, "I call f.");
  EXPECT_EQ(both.calls, (Calls{{"f", "{}"}}));
  EXPECT_EQ(both.content, "");
}

const OutJson kWeather = {
    {"type", "function"},
    {"function",
     {{"name", "get_weather"},
      {"parameters",
       {{"type", "object"},
        {"properties", {{"city", {{"type", "string"}, {"maxLength", 6}}}, {"days", {{"enum", {1, 2}}}}}},
        {"required", {"city", "days"}}}}}}};
const OutJson kNow = {{"type", "function"}, {"function", {{"name", "now"}}}};

class Tools : public test_support::Served {
 protected:
  void SetUp() override {
    const auto found = grammar::find_xgrammar();
    if (!found) GTEST_SKIP() << found.why();
    start_with("<tool_call>");
  }
  void start_with(const std::string& marker) {
    const std::string text = "{% for t in tools or [] %}" + marker +
                             "{{ t.function.name }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
                             "{% endfor %}<|assistant|>";
    start({}, ChatTemplate({{"default", text}}, OutJson::object()));
  }
  static OutJson body(const OutJson& more) {
    OutJson out = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                   {"seed", 2},
                   {"tools", {kWeather, kNow}},
                   {"logit_bias", {{"256", 10}, {"34", 5}}}};
    out.update(more);
    return out;
  }
  OutJson call(const OutJson& more, int status = 200) const { return post("/v1/chat/completions", body(more), status); }
};

TEST_F(Tools, DemandedCallsFitTheirSchema) {
  for (const char* marker : {"<tool_call>", "[TOOL_CALLS]", "{\"name\": ..., \"parameters\": ...}"}) {
    start_with(marker);
    const OutJson named = call({{"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}}});
    const OutJson& choice = named["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << named;
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << named;
    const OutJson& made = choice["message"]["tool_calls"][0];
    EXPECT_TRUE(choice["message"]["content"].is_null());
    EXPECT_EQ(made["type"], "function");
    EXPECT_EQ(made["id"].get<std::string>().size(), 29u) << made;
    EXPECT_EQ(made["function"]["name"], "get_weather");
    EXPECT_EQ(grammar::answer_problem(kWeather["function"]["parameters"], made["function"]["arguments"]), "") << made;
    const OutJson any = call({{"tool_choice", "required"}, {"parallel_tool_calls", false}});
    ASSERT_EQ(any["choices"][0]["message"]["tool_calls"].size(), 1u) << any;
    expect_nothing_left();
  }
}

TEST_F(Tools, AStreamHasIdTypeAndNameOnceThenArguments) {
  OutJson request = body({{"tool_choice", {{"type", "function"}, {"function", {{"name", "get_weather"}}}}}});
  const OutJson whole = post("/v1/chat/completions", request);
  request["stream"] = true;
  std::string arguments, reason;
  int names = 0, pieces = 0;
  for (const OutJson& chunk : events("/v1/chat/completions", request)) {
    const OutJson& choice = chunk["choices"][0];
    if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
    if (!choice["delta"].contains("tool_calls")) continue;
    const OutJson& part = choice["delta"]["tool_calls"][0];
    EXPECT_EQ(part["index"], 0);
    if (part.contains("id")) {
      ++names;
      EXPECT_EQ(pieces, 0);
      EXPECT_EQ(part["function"]["name"], "get_weather");
      EXPECT_EQ(part["type"], "function");
    } else {
      ++pieces;
      EXPECT_FALSE(part["function"].contains("name"));
    }
    arguments += part["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(names, 1);
  EXPECT_GT(pieces, 3) << "as they come";
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(arguments, whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]);
}

TEST_F(Tools, TheTemplateShowsThemUnlessNoneIsChosen) {
  expect_has(post("/apply_template", body(OutJson::object()))["prompt"], {"get_weather", "<tool_call>"});
  EXPECT_EQ(post("/apply_template", body({{"tool_choice", "none"}}))["prompt"].get<std::string>().find("get_weather"),
            std::string::npos);
  const OutJson free = call({{"tool_choice", "auto"}, {"max_tokens", 10}, {"logit_bias", OutJson::object()}});
  EXPECT_TRUE(free["choices"][0]["message"]["content"].is_string()) << free;
  EXPECT_FALSE(free["choices"][0]["message"].contains("tool_calls"));
}

TEST_F(Tools, RefusalsNameTheField) {
  const auto param = [&](const OutJson& more) { return call(more, 400)["error"]["param"].get<std::string>(); };
  EXPECT_EQ(param({{"tool_choice", {{"type", "function"}, {"function", {{"name", "other"}}}}}}), "tool_choice");
  EXPECT_EQ(param({{"tool_choice", 3}}), "tool_choice");
  EXPECT_EQ(param({{"tools", {{{"type", "search"}}}}}), "tools");
  EXPECT_EQ(param({{"response_format", {{"type", "json_object"}}}}), "tools");
  const OutJson bad = {{"type", "function"},
                       {"function", {{"name", "f"}, {"parameters", {{"not", OutJson::object()}}}}}};
  const OutJson error = call({{"tools", {bad}}, {"tool_choice", "required"}}, 400)["error"];
  EXPECT_EQ(error["param"], "tools");
  expect_has(error["message"], {"the parameters of f", "'not'"});
  call({{"tools", {bad}}, {"max_tokens", 1}});  // nothing is forced: the schema is the template's business
}

TEST_F(Tools, ThoughtsComeUnderBothNames) {
  start({}, ChatTemplate({{"default", "<|user|>{{ messages[0].content }}<|assistant|><think>\n{# </think> #}"}},
                         OutJson::object()));
  const OutJson answer = chat({{"max_tokens", 5}, {"temperature", 0}, {"ignore_eos", true}});
  const OutJson& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["content"], "");
  EXPECT_EQ(message["reasoning"].get<std::string>().size(), 5u) << answer;
  EXPECT_EQ(message["reasoning"], message["reasoning_content"]);
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 5);
}

}  // namespace
}  // namespace hotswap
