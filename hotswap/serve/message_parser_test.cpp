// An answer's text cut into thoughts, content and calls of tools, however it comes, in every form of calls.
#include "hotswap/serve/message_parser.h"

#include <gtest/gtest.h>

#include "hotswap/serve/python_literal.h"

namespace hotswap {
namespace {

using serve::MessageParser;
using serve::MessagePart;
using serve::MessageRules;
using serve::ToolFormat;
using OutJson = nlohmann::ordered_json;
using Kind = MessagePart::Kind;

// The row of models whose template has this text.
const ToolFormat& row(const std::string& text) {
  return serve::tool_format_of(ChatTemplate({{"default", "{# " + text + " #}"}}, OutJson::object()));
}

const ToolFormat& kHermes = row("<tool_call>");
const ToolFormat& kMistral = row("[TOOL_CALLS]");
const ToolFormat& kBare = row("\"parameters\": dictionary");

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

// An answer that max_tokens cut within what closes its call.
TEST(MessageParts, HalfOfWhatClosesACallIsNoContent) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", close = "\n</tool_call>";
  for (size_t bytes = 0; bytes <= close.size(); ++bytes) {
    const Read out = read(of(kHermes), call + close.substr(0, bytes));
    EXPECT_EQ(out.content, "") << bytes;
    EXPECT_EQ(out.calls, (Calls{{"f", "{}"}})) << bytes;
  }
  EXPECT_EQ(read(of(kHermes), call + "\n</b>").content, "\n</b>");
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

TEST(MessageParts, TheTemplateShowsTheFormat) {
  const std::vector<std::pair<std::string, std::string>> shown = {
      {"<tool_call>{\"name\"", "hermes"},
      {"nothing of it", "hermes"},
      {"<tool_call><function=f><parameter=a>", "qwen3_coder"},
      {"<\uff5ctool\u2581calls\u2581begin\uff5c> ```json", "deepseek_v3"},
      {"<\uff5ctool\u2581calls\u2581begin\uff5c>", "deepseek_v31"},
      {"<|start|>assistant<|channel|>final<|message|>", "harmony"},
      {"[TOOL_CALLS] [{", "mistral"},
      {"[TOOL_CALLS]f[ARGS]{", "mistral_args"},
      {"<tool_call>{name}<arg_key>{key}</arg_key>", "glm"},
      {"<|tool_call_start|>[", "lfm2"},
      {"put it in the format of [func_name1(params_name1=params_value1)]", "llama_python"},
      {"<|python_tag|> {\"name\": , \"parameters\": }", "llama3_json"}};
  for (const auto& [text, name] : shown) EXPECT_EQ(row(text).name, name) << text;
}

TEST(MessageParts, CallsOfQwen3Coder) {
  MessageRules rules = of(row("<tool_call> <function="));
  rules.typed = {{"f", {"count", "flags"}}};
  const Read one = read(rules,
                        "I look.\n<tool_call>\n<function=f>\n<parameter=text>\nline \"1\"\n  line <2>\n</parameter>\n"
                        "<parameter=count>\n 12 \n</parameter>\n<parameter=flags>\n[true, null]\n</parameter>\n"
                        "</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n</function>\n</tool_call>");
  EXPECT_EQ(one.content, "I look.");
  EXPECT_EQ(one.calls, (Calls{{"f", R"({"text": "line \"1\"\n  line <2>", "count": 12, "flags": [true, null]})"},
                              {"get_weather", "{}"}}));
  EXPECT_EQ(read(rules,
                 "<tool_call><function=f><parameter=text>12</parameter><parameter=count>many</parameter></function>"
                 "</tool_call>")
                .calls,
            (Calls{{"f", R"({"text": "12", "count": "many"})"}}))
      << "a text that looks like a number, and no JSON where JSON should be";
  EXPECT_EQ(read(rules, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>").calls,
            (Calls{{"f", "{\"a\": 1}"}}))
      << "as a demanded call is written";
  for (const std::string text : {"<tool_call>\n<function=unknown>\n</function>", "<tool_call><fun>", "<tool_call>f"}) {
    const Read out = read(rules, text);
    EXPECT_EQ(out.content, text);
    EXPECT_EQ(out.unparsed, 1) << text;
  }
}

// Of DeepSeek V3 and R1, and of V3.1.
TEST(MessageParts, CallsOfDeepSeek) {
  const std::string begin = "<\uff5ctool\u2581calls\u2581begin\uff5c>",
                    call = "<\uff5ctool\u2581call\u2581begin\uff5c>", sep = "<\uff5ctool\u2581sep\uff5c>",
                    close = "<\uff5ctool\u2581call\u2581end\uff5c>", end = "<\uff5ctool\u2581calls\u2581end\uff5c>";
  const Calls both = {{"get_weather", "{\"city\": \"Rome\"}"}, {"f", "{}"}};
  const Read v3 =
      read(of(row(begin + "```json"), true), "<think>Two.</think>\n\nI look." + begin + call + "function" + sep +
                                                 "get_weather\n```json\n{\"city\": \"Rome\"}\n```" + close + "\n" +
                                                 call + "function" + sep + "f\n```json\n{}\n```" + close + end);
  EXPECT_EQ(v3.reasoning, "Two.");
  EXPECT_EQ(v3.content, "I look.");
  EXPECT_EQ(v3.calls, both);
  EXPECT_EQ(v3.unparsed, 0);
  const Read v31 = read(of(row(begin)), begin + call + "get_weather" + sep + "{\"city\": \"Rome\"}" + close + call +
                                            "f" + sep + "{}" + close + end);
  EXPECT_EQ(v31.calls, both);
  EXPECT_EQ(v31.content, "");
  const Read unknown = read(of(row(begin)), begin + call + "other" + sep + "{}");
  EXPECT_TRUE(unknown.calls.empty());
  EXPECT_EQ(unknown.unparsed, 1);
}

TEST(MessageParts, CallsOfGptOss) {
  const MessageRules rules = of(row("<|channel|> <|message|>"));
  const Read whole =
      read(rules,
           "<|channel|>analysis<|message|>I need < 2 calls.<|end|><|start|>assistant<|channel|>commentary"
           "<|message|>One moment.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
           "<|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>");
  EXPECT_EQ(whole.reasoning, "I need < 2 calls.");
  EXPECT_EQ(whole.content, "One moment.");
  EXPECT_EQ(whole.calls, (Calls{{"get_weather", "{\"city\": \"Rome\"}"}}));
  EXPECT_EQ(read(rules, " to=functions.f<|channel|>commentary json<|message|>{}").calls, (Calls{{"f", "{}"}}))
      << "after <|start|>assistant of the prompt";
  EXPECT_EQ(read(rules, "<|channel|>final<|message|>Done.<|return|>").content, "Done.");
  EXPECT_EQ(read(rules, "{\"no\": \"channel\"}").content, "{\"no\": \"channel\"}");
  EXPECT_EQ(read(rules, "<|channel|>analysis<|message|>never ends").reasoning, "never ends");
  EXPECT_EQ(read(rules, "<|channel|>final").content, "<|channel|>final");
  const Read unknown = read(rules, "<|channel|>commentary to=functions.other<|message|>{}<|call|>");
  EXPECT_EQ(unknown.content, "{}");
  EXPECT_EQ(unknown.unparsed, 1);
  EXPECT_EQ(read(rules, "<|channel|>commentary to=functions.f<|message|>{\"a\": <|call|>").unparsed, 1);
}

TEST(MessageParts, CallsOfMistralWithArgs) {
  const MessageRules rules = of(row("[TOOL_CALLS] [ARGS]"));
  EXPECT_EQ(read(rules, "[TOOL_CALLS]f[ARGS]{\"a\": \"]{\"}[TOOL_CALLS]get_weather[CALL_ID]x1[ARGS]{}").calls,
            (Calls{{"f", "{\"a\": \"]{\"}"}, {"get_weather", "{}"}}));
  EXPECT_EQ(read(of(kMistral), "[TOOL_CALLS]f{\"a\": 1}").calls, (Calls{{"f", "{\"a\": 1}"}}))
      << "of models between the two";
  EXPECT_EQ(read(rules, "[TOOL_CALLS]nothing").content, "[TOOL_CALLS]nothing");
}

TEST(MessageParts, CallsOfLlamaWithItsTag) {
  const MessageRules rules = of(kBare);
  EXPECT_EQ(read(rules, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}").calls,
            (Calls{{"f", "{\"a\": 1}"}}));
  EXPECT_EQ(read(rules, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_weather\", \"parameters\": {}}").calls,
            (Calls{{"f", "{}"}, {"get_weather", "{}"}}));
  const Read code = read(rules, "<|python_tag|>print(1)");
  EXPECT_EQ(code.content, "<|python_tag|>print(1)");
  EXPECT_EQ(code.unparsed, 1);
  EXPECT_EQ(read(rules, "<|pyth").content, "<|pyth");
}

// Of GLM 4.5 and 4.6 with line ends, of 4.7 without.
TEST(MessageParts, CallsOfGlm) {
  MessageRules rules = of(row("<tool_call>{name} <arg_key>"), true);
  rules.typed = {{"f", {"count", "flags"}}};
  const Read lines = read(rules,
                          "<think>Two.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>"
                          "Z\u00fcrich <1>\n</arg_value>\n</tool_call>\n<tool_call>f\n<arg_key>count</arg_key>\n"
                          "<arg_value>2</arg_value>\n<arg_key>flags</arg_key>\n<arg_value>[true]</arg_value>\n"
                          "</tool_call>");
  EXPECT_EQ(lines.reasoning, "Two.");
  EXPECT_EQ(lines.content, "I look.");
  EXPECT_EQ(lines.calls,
            (Calls{{"get_weather", "{\"city\": \"Z\u00fcrich <1>\\n\"}"}, {"f", "{\"count\": 2, \"flags\": [true]}"}}));
  EXPECT_EQ(lines.unparsed, 0);
  EXPECT_EQ(
      read(rules, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_call>f</tool_call>").calls,
      (Calls{{"f", "{\"a\": \"1\"}"}, {"f", "{}"}}));
  EXPECT_EQ(read(rules, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>").calls,
            (Calls{{"f", "{\"a\": 1}"}}))
      << "as a demanded call is written";
  for (const std::string text : {"<tool_call>other\n<arg_key>", "<tool_call><arg_key>a</arg_key>", "<tool_call>f"}) {
    const Read out = read(rules, text);
    EXPECT_EQ(out.content, text);
    EXPECT_EQ(out.unparsed, 1) << text;
  }
}

// Llama's, as its prompt format shows them or after its tags, and LFM2's between its own.
TEST(MessageParts, CallsAsPythonWritesThem) {
  const MessageRules llama = of(row("[func_name1(params_name1=params_value1)]"));
  const Calls both = {{"get_weather", "{\"city\": \"Z\u00fcrich, (it's)\", \"days\": [1,2.5,-300.0]}"},
                      {"f", "{\"a\": {\"k\":null,\"l\":[true,false]}}"}};
  const std::string text =
      "[get_weather(city='Z\u00fcrich, (it\\'s)', days=[1, 2.5, -3e2]), f( a = {\"k\": None, 'l': (True, False,)} )]";
  EXPECT_EQ(read(llama, text).calls, both);
  EXPECT_EQ(read(llama, text).content, "");
  EXPECT_EQ(read(llama, "<|python_start|>" + text + "<|python_end|>").calls, both);
  EXPECT_EQ(read(of(row("<|tool_call_start|>")), "I look.<|tool_call_start|>" + text + "<|tool_call_end|>Done.").calls,
            both);
  EXPECT_EQ(read(of(row("<|tool_call_start|>")), "I look.<|tool_call_start|>[f()]<|tool_call_end|>Done.").content,
            "I look.Done.");
  EXPECT_EQ(read(of(kBare), "<|python_tag|>f.call(query=\"a\\nb\")").calls, (Calls{{"f", "{\"query\": \"a\\nb\"}"}}));
  EXPECT_EQ(read(of(kBare), "[f(a=1), f()]").calls, (Calls{{"f", "{\"a\": 1}"}, {"f", "{}"}}));
  for (const std::string none :
       {"[1] is a source", "[link](http://a)", "[other(a=1)]", "[see (a) and b]", "f(a=1)", "[f"}) {
    const Read out = read(llama, none);
    EXPECT_EQ(out.content, none);
    EXPECT_TRUE(out.calls.empty()) << none;
  }
  for (const std::string broken : {"[f('Rome')]", "[f(a=print)]", "[f(a=1 b=2)]", "[f(a=[1)]", "[f(a='x"}) {
    EXPECT_EQ(read(llama, broken).calls.size(), 1u) << broken << ": its name was reported already";
  }
}

TEST(PythonLiterals, AreJson) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {" 'a\\x41\\u00e9\\U0001F600\\q' ", "\"aA\u00e9\U0001F600\\\\q\""},
      {"\"\\ud83d\\ude00\"", "\"\U0001F600\""},
      {"{'a': (1, [None]), }", "{\"a\":[1,[null]]}"},
      {"-1.5e3", "-1500.0"},
      {"true", "true"},
      {"[]", "[]"}};
  for (const auto& [python, json] : rows) EXPECT_EQ(serve::json_of_python(python), json) << python;
  for (const std::string& none :
       {std::string("1 2"), std::string("'a"), std::string("[1,"), std::string("{1: 2}"), std::string("x"),
        std::string(), std::string("'\\ud800'"), std::string("'\\xg0'"), std::string("1_000"),
        std::string("99999999999999999999"), std::string(100, '[') + std::string(100, ']')}) {
    EXPECT_EQ(serve::json_of_python(none), std::nullopt) << none;
  }
}

TEST(MessageParts, ParametersThatTakeTextsAreNotTyped) {
  const auto typed = serve::typed_parameters({{{"type", "function"},
                                               {"function",
                                                {{"name", "f"},
                                                 {"parameters",
                                                  {{"properties",
                                                    {{"a", {{"type", "string"}}},
                                                     {"b", {{"type", "integer"}}},
                                                     {"c", {{"type", {"string", "null"}}}},
                                                     {"d", {{"anyOf", {{{"type", "string"}}, {{"type", "null"}}}}}},
                                                     {"e", {{"enum", {1, 2}}}},
                                                     {"g", OutJson::object()},
                                                     {"h", {{"type", "object"}}}}}}}}}},
                                              {{"type", "function"}, {"function", {{"name", "g"}}}}});
  EXPECT_EQ(typed, (serve::TypedParameters{{"f", {"b", "e", "h"}}, {"g", {}}}));
}

}  // namespace
}  // namespace hotswap
