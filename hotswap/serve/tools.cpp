#include "hotswap/serve/tools.h"

#include <algorithm>

#include "hotswap/grammar/schema_rules.h"

namespace hotswap::serve {
namespace {

using OutJson = nlohmann::ordered_json;

constexpr size_t kMaxTools = 128;
constexpr int64_t kMaxCalls = 16;  // in one message, where they are demanded

std::string tool_name_of(const Json& tool) {
  const bool complete = tool.is_object() && tool.get<std::string>("type", "") == "function" && tool.has("function") &&
                        tool.child("function").is_object() && tool.child("function").has("name");
  if (!complete) {
    bad_request({"tools of the form {\"type\": \"function\", \"function\": {\"name\", ...}}", came(tool.raw()),
                 "write each tool in this form", "tools"});
  }
  const Json function = tool.child("function");
  const auto name = function.at<std::string>("name");
  const bool plain = !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
  if (!plain) {
    bad_request({"names of tools of 1 to 64 letters, digits, _ - and .", came(OutJson(name)), "rename it", "tools"});
  }
  if (const auto parameters = function.find("parameters"); parameters && !parameters->is_object()) {
    bad_request({cat("the parameters of ", name, " as a JSON Schema"), came(parameters),
                 "send {\"type\": \"object\", \"properties\": ...}, or leave them out", "tools"});
  }
  return name;
}

// "auto", "none", "required", or {"type": "function", "function": {"name"}}; then the name goes to `named`.
ToolChoice choice_of(const Json& choice, std::string& named) {
  if (choice.is_string()) {
    const auto text = choice.as<std::string>();
    if (text == "none") return ToolChoice::kNone;
    if (text == "auto") return ToolChoice::kAuto;
    if (text == "required") return ToolChoice::kRequired;
  } else if (choice.is_object() && choice.get<std::string>("type", "") == "function") {
    named = choice.child("function").at<std::string>("name");
    return ToolChoice::kRequired;
  }
  bad_request({"tool_choice none, auto, required or {\"type\": \"function\", \"function\": {\"name\"}}",
               came(choice.raw()), "send one of these", "tool_choice"});
}

std::vector<std::string> tool_names(const Json& tools) {
  if (!tools.is_array()) bad_request({"tools as a list", came(tools.raw()), "send [] for none", "tools"});
  const auto elements = tools.elements();
  if (elements.size() > kMaxTools) {
    bad_request({cat("at most ", kMaxTools, " tools"), cat(elements.size()), "leave some out", "tools"});
  }
  std::vector<std::string> names;
  for (const Json& tool : elements) {
    names.push_back(tool_name_of(tool));
    if (std::count(names.begin(), names.end(), names.back()) > 1) {
      bad_request({"tools of different names", names.back() + " twice", "rename one of them", "tools"});
    }
  }
  return names;
}

}  // namespace

std::set<int64_t> marker_tokens(const Tokenizer& tokenizer, const ToolFormat& format) {
  std::set<int64_t> ids;
  for (const char* marker : format.special) {
    const auto id = tokenizer.token_to_id(marker);
    if (id && tokenizer.is_special(*id)) ids.insert(*id);
  }
  return ids;
}

std::set<int64_t> marker_tokens(const Tokenizer& tokenizer) {
  std::set<int64_t> ids;
  for (const ToolFormat& row : tool_formats()) ids.merge(marker_tokens(tokenizer, row));
  return ids;
}

ToolRequest read_tools(RequestBody& body, const ChatTemplate& chat_template) {
  const auto tools = body.json("tools");
  const auto choice = body.json("tool_choice");
  ToolRequest request{.parallel = body.flag("parallel_tool_calls", true)};
  std::string named;
  if (tools) request.names = body.guarded("tools", [&] { return tool_names(*tools); });
  request.choice = request.names.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  if (choice) {
    const ToolChoice chosen = body.guarded("tool_choice", [&] { return choice_of(*choice, named); });
    if (chosen == ToolChoice::kRequired && request.names.empty()) {
      bad_request({"tools beside tool_choice", "none", "send tools, or tool_choice auto", "tool_choice"});
    }
    if (!request.names.empty()) request.choice = chosen;
  }
  if (!named.empty()) {
    if (std::find(request.names.begin(), request.names.end(), named) == request.names.end()) {
      bad_request({"the name of one of the tools in tool_choice", came(OutJson(named)),
                   "name one of " + join(request.names), "tool_choice"});
    }
    request.names = {named};
    request.parallel = false;
  }
  if (request.choice == ToolChoice::kNone) return request;
  if (!chat_template.mentions("tools")) {
    bad_request({"a model whose chat template shows tools", "one whose template has no word of them",
                 "leave tools out, or use another model", "tools", "unsupported_parameter"});
  }
  request.tools = tools->raw();
  request.format = &tool_format_of(chat_template);
  return request;
}

namespace {

// A call of the tool, as the model writes it or, where values have no quotes, as an object.
grammar::ExprPtr call_of(const std::string& name, const grammar::ExprPtr& arguments, const ToolFormat& format) {
  using grammar::literal;
  if (format.named()) return grammar::sequence({literal(cat(format.before, name, format.between)), arguments});
  const std::string head = cat("{\"name\": ", grammar::json_text(name), ", \"", format.arguments, "\": ");
  return grammar::sequence({literal(head), arguments, literal("}")});
}

// One call and up to `more` further ones.
grammar::ExprPtr calls_of(const grammar::ExprPtr& call, const ToolFormat& format, int64_t more) {
  using grammar::literal;
  using grammar::repeat;
  using grammar::sequence;
  const std::string open = format.open, after = format.after, end = format.end;
  if (format.list) {
    return sequence({literal(open + " ["), call, repeat(sequence({literal(", "), call}), 0, more), literal(end)});
  }
  if (format.named() && !end.empty()) {
    const grammar::ExprPtr one = sequence({call, literal(after)});
    return sequence({literal(open), one, repeat(sequence({literal("\n"), one}), 0, more), literal(end)});
  }
  if (open.empty()) return call;
  if (format.named()) {
    const grammar::ExprPtr one = sequence({literal(open), call});
    return sequence({one, repeat(one, 0, more)});
  }
  const grammar::ExprPtr one = sequence({literal(open + "\n"), call, literal("\n" + after)});
  return sequence({one, repeat(sequence({literal("\n"), one}), 0, more)});
}

}  // namespace

AnswerRules tool_rules(const ToolRequest& request) {
  const ToolFormat& format = *request.format;
  grammar::JsonRules json;
  std::vector<grammar::ExprPtr> calls;
  for (const OutJson& tool : request.tools) {
    const OutJson& function = tool["function"];
    const auto name = function["name"].get<std::string>();
    if (std::find(request.names.begin(), request.names.end(), name) == request.names.end()) continue;
    OutJson parameters = function.value("parameters", OutJson::object());
    if (parameters.is_null()) parameters = OutJson::object();
    if (!parameters.contains("type") && !parameters.contains("$ref")) parameters["type"] = "object";
    if (parameters.size() == 1) parameters["properties"] = OutJson::object();
    try {
      grammar::check_schema(parameters);
      calls.push_back(call_of(name, grammar::SchemaRules(parameters, json).whole(), format));
    } catch (const Error& error) {
      bad_request({cat(error.wanted(), " as the parameters of ", name), error.got(), error.next(), "tools"});
    }
  }
  const grammar::ExprPtr call = grammar::rule(json.rules().add("call", grammar::choice(std::move(calls))));
  const std::string text = json.rules().print(calls_of(call, format, request.parallel ? kMaxCalls - 1 : 0));
  if (text.empty()) {
    bad_request({"a tool whose parameters some value fits", "none", "correct the schemas of the parameters", "tools"});
  }
  return {.ebnf = text, .field = "tools"};
}

}  // namespace hotswap::serve
