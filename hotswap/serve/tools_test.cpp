// Calls of tools and thoughts over HTTP.
#include "hotswap/grammar/schema_validator.h"
#include "hotswap/grammar/xgrammar.h"
#include "hotswap/serve/test_server.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::OutJson;

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
  for (const char* marker :
       {"<tool_call>", "[TOOL_CALLS]", "{\"name\": ..., \"parameters\": ...}",
        "<tool_call><function=", "[TOOL_CALLS][ARGS]", "<｜tool▁calls▁begin｜>", "<|channel|><|message|>",
        "<tool_call><arg_key>", "<|tool_call_start|>", "func_name1(params_name1"}) {
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

// With both an answer is calls whose arguments fit, or a text that fits; never anything else.
TEST_F(Tools, BesideAFormTheAnswerIsCallsOrATextOfThatForm) {
  const OutJson schema = {{"type", "object"},
                          {"properties", {{"sum", {{"type", "integer"}}}}},
                          {"required", {"sum"}},
                          {"additionalProperties", false}};
  const OutJson form = {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}};
  int calls = 0, texts = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const OutJson answer = call({{"response_format", form}, {"seed", seed}, {"parallel_tool_calls", false}});
    const OutJson& choice = answer["choices"][0];
    EXPECT_FALSE(choice.contains("structured_output_error")) << answer;
    if (choice["finish_reason"] == "tool_calls") {
      ++calls;
      const OutJson& made = choice["message"]["tool_calls"].at(0)["function"];
      if (made["name"] == "get_weather") {
        EXPECT_EQ(grammar::answer_problem(kWeather["function"]["parameters"], made["arguments"]), "") << made;
      }
    } else if (choice["finish_reason"] == "stop") {
      ++texts;
      EXPECT_EQ(grammar::answer_problem(schema, choice["message"]["content"]), "") << answer;
    }
  }
  EXPECT_GT(calls, 0);
  EXPECT_GT(texts, 0);
  const OutJson forced = call({{"response_format", form}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
  EXPECT_EQ(forced["choices"][0]["finish_reason"], "tool_calls") << forced;
  const OutJson none = call({{"response_format", form}, {"tool_choice", "none"}});
  EXPECT_EQ(grammar::answer_problem(schema, none["choices"][0]["message"]["content"]), "") << none;
  const OutJson bad = {{"type", "function"},
                       {"function", {{"name", "f"}, {"parameters", {{"not", OutJson::object()}}}}}};
  expect_has(call({{"response_format", form}, {"tools", {bad}}}, 400)["error"]["message"], {"'not'"});
  expect_nothing_left();
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
