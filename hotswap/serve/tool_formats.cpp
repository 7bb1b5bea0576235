#include "hotswap/serve/tool_formats.h"

#include <algorithm>

namespace hotswap::serve {
namespace {

using OutJson = nlohmann::ordered_json;
using Style = ToolFormat::Style;

// Whether a schema takes texts: without a type anything may come as one.
bool takes_texts(const OutJson& schema) {
  if (!schema.is_object()) return true;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_array()) return std::find(type->begin(), type->end(), "string") != type->end();
    return *type == "string";
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (const auto parts = schema.find(key); parts != schema.end() && parts->is_array()) {
      return std::any_of(parts->begin(), parts->end(), takes_texts);
    }
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    return std::any_of(values->begin(), values->end(), [](const OutJson& value) { return value.is_string(); });
  }
  return true;
}

}  // namespace

const std::vector<ToolFormat>& tool_formats() {
  static const std::vector<ToolFormat> rows = {
      {.name = "harmony",
       .known_by = "<|channel|>",
       .also = "<|message|>",
       .before = "<|channel|>commentary to=functions.",
       .between = " <|constrain|>json<|message|>",
       .style = Style::kChannels,
       .special = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>"}},
      {.name = "deepseek_v3",
       .known_by = "<｜tool▁calls▁begin｜>",
       .also = "```json",
       .open = "<｜tool▁calls▁begin｜>",
       .before = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
       .between = "\n```json\n",
       .after = "\n```<｜tool▁call▁end｜>",
       .next = "<｜tool▁call▁begin｜>",
       .end = "<｜tool▁calls▁end｜>",
       .style = Style::kNamed,
       .special = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                   "<｜tool▁calls▁end｜>"}},
      {.name = "deepseek_v31",
       .known_by = "<｜tool▁calls▁begin｜>",
       .open = "<｜tool▁calls▁begin｜>",
       .before = "<｜tool▁call▁begin｜>",
       .between = "<｜tool▁sep｜>",
       .after = "<｜tool▁call▁end｜>",
       .next = "<｜tool▁call▁begin｜>",
       .end = "<｜tool▁calls▁end｜>",
       .style = Style::kNamed,
       .special = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
                   "<｜tool▁calls▁end｜>"}},
      {.name = "mistral_args",
       .known_by = "[TOOL_CALLS]",
       .also = "[ARGS]",
       .open = "[TOOL_CALLS]",
       .between = "[ARGS]",
       .style = Style::kNamed,
       .special = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}},
      {.name = "mistral",
       .known_by = "[TOOL_CALLS]",
       .open = "[TOOL_CALLS]",
       .next = ",",
       .end = "]",
       .style = Style::kNamed,
       .list = true,
       .special = {"[TOOL_CALLS]"}},
      {.name = "qwen3_coder",
       .known_by = "<function=",
       .also = "<tool_call>",
       .open = "<tool_call>",
       .after = "</tool_call>",
       .style = Style::kParameters,
       .special = {"<tool_call>", "</tool_call>"}},
      {.name = "glm",
       .known_by = "<arg_key>",
       .also = "<tool_call>",
       .open = "<tool_call>",
       .after = "</tool_call>",
       .style = Style::kKeys,
       .special = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}},
      {.name = "hermes",
       .known_by = "<tool_call>",
       .open = "<tool_call>",
       .after = "</tool_call>",
       .special = {"<tool_call>", "</tool_call>"}},
      {.name = "lfm2",
       .known_by = "<|tool_call_start|>",
       .open = "<|tool_call_start|>",
       .after = "<|tool_call_end|>",
       .python = true,
       .special = {"<|tool_call_start|>", "<|tool_call_end|>"}},
      {.name = "llama_python",
       .known_by = "func_name1(params_name1",
       .tag = "<|python_start|>",
       .after = "<|python_end|>",
       .arguments = "parameters",
       .python = true,
       .special = {"<|python_start|>", "<|python_end|>"}},
      {.name = "llama3_json",
       .known_by = "\"parameters\":",
       .tag = "<|python_tag|>",
       .next = ";",
       .arguments = "parameters",
       .python = true,
       .special = {"<|python_tag|>"}},
      {.name = "hermes", .open = "<tool_call>", .after = "</tool_call>", .special = {"<tool_call>", "</tool_call>"}},
  };
  return rows;
}

const ToolFormat& tool_format_of(const ChatTemplate& chat_template) {
  const auto& rows = tool_formats();
  return *std::find_if(rows.begin(), rows.end(), [&](const ToolFormat& row) {
    return chat_template.mentions(row.known_by) && chat_template.mentions(row.also);
  });
}

TypedParameters typed_parameters(const OutJson& tools) {
  TypedParameters typed;
  for (const OutJson& tool : tools) {
    const OutJson& function = tool.at("function");
    std::set<std::string>& names = typed[function.at("name").get<std::string>()];
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      if (!takes_texts(schema)) names.insert(name);
    }
  }
  return typed;
}

}  // namespace hotswap::serve
