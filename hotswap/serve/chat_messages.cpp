#include "hotswap/serve/chat_messages.h"

#include <algorithm>

namespace hotswap::serve {
namespace {

using OutJson = nlohmann::ordered_json;

constexpr size_t kMaxMessages = 4096;

// A text, or a list of parts of type text, joined by line ends. An assistant's refusal is text as well.
OutJson content_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content.raw();
  if (!content.is_array()) {
    bad_request({cat(where, " as a text, null or a list of parts"), came(content.raw()), "send a text", where});
  }
  std::string text;
  const char* before = "";
  for (const Json& part : content.elements()) {
    const std::string type = part.is_object() ? part.get<std::string>("type", "") : "";
    if (type != "text" && type != "refusal") {
      bad_request({cat("parts of type text in ", where), type.empty() ? came(part.raw()) : type.substr(0, 80),
                   "send {\"type\": \"text\", \"text\"}: this server reads text only", where});
    }
    text += before + part.at<std::string>(type);
    before = "\n";
  }
  return text;
}

// Arguments come as JSON text; templates read an object. What is no object stays the text that it is, and so does what
// goes beyond the limits of a request's own JSON: copying lists that are nested 100,000 deep overflows the stack.
OutJson tool_calls_of(const Json& calls) {
  OutJson out = calls.raw();
  if (!out.is_array()) {
    bad_request({"tool_calls as a list", came(out), "send them as this server's answers have them", "messages"});
  }
  for (OutJson& call : out) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OutJson& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto text = function["arguments"].get<std::string>();
    JsonDocument parsed = read_json_text(text);
    if (parsed.fault == JsonFault::kNone && parsed.root.is_object()) function["arguments"] = std::move(parsed.root);
  }
  return out;
}

OutJson message_of(const Json& message, size_t index, bool knows_developer) {
  const std::string where = cat("messages[", index, "]");
  if (!message.is_object()) {
    bad_request({cat(where, " as an object"), came(message.raw()), "send {\"role\", \"content\"}", where});
  }
  OutJson out = message.raw();
  const auto role = message.at<std::string>("role");
  if (role == "developer" && !knows_developer) out["role"] = "system";
  if (const auto content = message.find("content")) out["content"] = content_of(*content, where + ".content");
  if (!out.contains("content")) out["content"] = nullptr;
  if (const auto calls = message.find("tool_calls")) out["tool_calls"] = tool_calls_of(*calls);
  if (const auto reasoning = message.find("reasoning"); reasoning && !message.has("reasoning_content")) {
    out["reasoning_content"] = reasoning->raw();
  }
  if (out["content"].is_null() && role != "assistant") {
    bad_request({cat("a content in ", where, " of role ", came(OutJson(role))), "none",
                 "send a text, \"\" for an empty one", where + ".content"});
  }
  if (out["content"].is_null()) out["content"] = "";
  return out;
}

OutJson checked_documents(const Json& documents) {
  const OutJson& list = documents.raw();
  const auto is_object = [](const OutJson& document) { return document.is_object(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_object)) {
    bad_request({"documents as a list of objects", came(list), "send [{\"title\", \"text\"}, ...]", "documents"});
  }
  return list;
}

// Variables of the template that are a request's own. Those that have a field of their own were checked there.
OutJson checked_variables(const Json& variables) {
  if (!variables.is_object()) {
    bad_request(
        {"chat_template_kwargs as an object", came(variables.raw()), "send {\"name\": value}", "chat_template_kwargs"});
  }
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}) {
    if (variables.raw().contains(name)) {
      bad_request({cat(name, " as a field of the request"), "it in chat_template_kwargs", "send it beside messages",
                   "chat_template_kwargs"});
    }
  }
  return variables.raw();
}

}  // namespace

ChatFields read_chat_fields(RequestBody& body, const ChatTemplate& chat_template) {
  const auto messages = body.json("messages");
  if (!messages || !messages->is_array()) {
    bad_request(
        {"messages as a list", came(messages), "send [{\"role\": \"user\", \"content\": \"a text\"}]", "messages"});
  }
  const auto elements = messages->elements();
  if (elements.empty() || elements.size() > kMaxMessages) {
    bad_request({cat("1 to ", kMaxMessages, " messages"), cat(elements.size()),
                 elements.empty() ? "send at least one" : "leave the oldest out", "messages"});
  }
  ToolRequest tools = read_tools(body, chat_template);
  ChatRequest request{.messages = OutJson::array(), .tools = tools.tools};
  const bool knows_developer = chat_template.mentions("developer");
  body.guarded("messages", [&] {
    for (size_t i = 0; i < elements.size(); ++i) {
      request.messages.push_back(message_of(elements[i], i, knows_developer));
    }
  });
  if (const auto documents = body.json("documents")) request.documents = checked_documents(*documents);
  if (body.flag("continue_final_message")) request.continue_final_message = "content";
  request.add_generation_prompt = body.flag("add_generation_prompt", !request.continue_final_message);
  if (const auto variables = body.json("chat_template_kwargs")) request.variables = checked_variables(*variables);
  if (const auto effort = body.get<std::string>("reasoning_effort")) request.variables["reasoning_effort"] = *effort;
  return {std::move(request), std::move(tools)};
}

}  // namespace hotswap::serve
