#include "hotswap/serve/responses_request.h"

#include <algorithm>

namespace hotswap::serve {
namespace {

// Fields of chats that mean the same here.
constexpr const char* kSame[] = {"model",
                                 "temperature",
                                 "top_p",
                                 "top_k",
                                 "min_p",
                                 "seed",
                                 "stop",
                                 "presence_penalty",
                                 "frequency_penalty",
                                 "repetition_penalty",
                                 "logit_bias",
                                 "min_tokens",
                                 "ignore_eos",
                                 "stop_token_ids",
                                 "stream",
                                 "parallel_tool_calls",
                                 "chat_template_kwargs",
                                 "cache_salt"};

std::string type_of(const Json& item) { return item.is_object() ? item.get<std::string>("type", "message") : ""; }

// A text, or parts that hold texts, as chats have it.
OutJson item_content(const Json& content, const std::string& where) {
  if (content.is_string()) return content.raw();
  if (!content.is_array()) {
    bad_request({cat(where, " as a text or a list of parts"), came(content.raw()), "send a text", where});
  }
  OutJson parts = OutJson::array();
  for (const Json& part : content.elements()) {
    const std::string type = part.is_object() ? part.get<std::string>("type", "") : "";
    const bool has_text = type == "input_text" || type == "output_text" || type == "reasoning_text" || type == "text" ||
                          type == "refusal";
    if (!has_text) {
      bad_request({cat("parts of type input_text or output_text in ", where),
                   type.empty() ? came(part.raw()) : type.substr(0, 80),
                   "send {\"type\": \"input_text\", \"text\"}: this server reads text only", where});
    }
    parts.push_back({{"type", "text"}, {"text", part.at<std::string>(type == "refusal" ? type : "text")}});
  }
  return parts;
}

std::string text_of(const OutJson& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const OutJson& part : content) text += part["text"].get<std::string>();
  return text;
}

// Items of `input` to messages: a model's thoughts, its text and its calls are one message of a chat.
class Messages {
 public:
  void add(const Json& item, const std::string& where) {
    const std::string type = type_of(item);
    if (type == "message") {
      const auto role = item.at<std::string>("role");
      if (role == "assistant") {
        assistant(!messages_.empty() && messages_.back().contains("content"))["content"] =
            item_content(item.child("content"), where + ".content");
      } else {
        messages_.push_back({{"role", role}, {"content", item_content(item.child("content"), where + ".content")}});
      }
    } else if (type == "function_call") {
      assistant(false)["tool_calls"].push_back(
          {{"id", item.at<std::string>("call_id")},
           {"type", "function"},
           {"function", {{"name", item.at<std::string>("name")}, {"arguments", item.at<std::string>("arguments")}}}});
    } else if (type == "function_call_output") {
      messages_.push_back({{"role", "tool"},
                           {"tool_call_id", item.at<std::string>("call_id")},
                           {"content", item_content(item.child("output"), where + ".output")}});
    } else if (type == "reasoning") {
      const auto content = item.find("content");
      if (content) assistant(true)["reasoning_content"] = text_of(item_content(*content, where + ".content"));
    } else {
      bad_request({"items of type message, function_call, function_call_output or reasoning in input",
                   type.empty() ? came(item.raw()) : type.substr(0, 80),
                   "leave it out: nothing is kept that it could name", where, "unsupported_parameter"});
    }
  }
  void system(const std::string& text) { messages_.push_back({{"role", "system"}, {"content", text}}); }
  void user(const std::string& text) { messages_.push_back({{"role", "user"}, {"content", text}}); }
  OutJson take() { return std::move(messages_); }

 private:
  OutJson& assistant(bool begins) {
    const bool goes_on = !begins && !messages_.empty() && messages_.back()["role"] == "assistant";
    if (!goes_on) messages_.push_back({{"role", "assistant"}});
    return messages_.back();
  }
  OutJson messages_ = OutJson::array();
};

OutJson messages_of(RequestBody& body) {
  Messages messages;
  if (const auto instructions = body.get<std::string>("instructions")) messages.system(*instructions);
  const auto input = body.json("input");
  if (!input || !(input->is_string() || input->is_array())) {
    bad_request({"input as a text or a list of items", came(input), "send {\"input\": \"a text\"}", "input"});
  }
  body.guarded("input", [&] {
    if (input->is_string()) return messages.user(input->as<std::string>());
    const auto items = input->elements();
    for (size_t i = 0; i < items.size(); ++i) messages.add(items[i], cat("input[", i, "]"));
  });
  return messages.take();
}

// {"type": "function", "name", ...} -> {"type": "function", "function": {"name", ...}}
OutJson function_of(const OutJson& flat, const std::string& field) {
  const bool is_function = flat.is_object() && flat.value("type", OutJson()) == "function";
  if (!is_function) {
    bad_request({cat(field, " of type function"), came(flat.is_object() ? flat.value("type", OutJson()) : flat),
                 "leave it out: this server calls no tools by itself", field, "unsupported_parameter"});
  }
  OutJson function = flat;
  function.erase("type");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void add_response_tools(RequestBody& body, OutJson& chat) {
  if (const auto tools = body.json("tools")) {
    if (!tools->is_array()) bad_request({"tools as a list", came(tools), "send [] for none", "tools"});
    chat["tools"] = OutJson::array();
    for (const OutJson& tool : tools->raw()) chat["tools"].push_back(function_of(tool, "tools"));
  }
  if (const auto choice = body.json("tool_choice")) {
    chat["tool_choice"] = choice->is_object() ? function_of(choice->raw(), "tool_choice") : choice->raw();
  }
}

void add_format(RequestBody& body, OutJson& chat) {
  const auto text = body.json("text");
  if (!text) return;
  if (!text->is_object()) {
    bad_request({"text as an object", came(text), "send {\"format\": {\"type\": \"text\"}}, or leave it out", "text"});
  }
  const auto format = text->find("format");
  if (!format || format->raw().is_null()) return;
  const std::string type = body.guarded("text.format", [&] { return type_of(*format); });
  if (type == "json_schema") {
    OutJson schema = format->raw();
    schema.erase("type");
    chat["response_format"] = {{"type", type}, {"json_schema", std::move(schema)}};
  } else {
    chat["response_format"] = {{"type", type}};
  }
}

void refuse_state(RequestBody& body) {
  body.refuse({"previous_response_id", "conversation", "prompt"});
  if (body.flag("background")) {
    bad_request({"background false", "true", "wait for the answer, or stream it: this server keeps none", "background",
                 "unsupported_parameter"});
  }
  if (const auto how = body.get<std::string>("truncation"); how && *how != "disabled") {
    bad_request(
        {"truncation disabled", came(OutJson(*how)), "shorten the input", "truncation", "unsupported_parameter"});
  }
  if (const auto top = body.integer("top_logprobs", 0, 20); top && *top > 0) {
    bad_request({"no top_logprobs", cat(*top), "use /v1/chat/completions, which has them", "top_logprobs",
                 "unsupported_parameter"});
  }
}

// What else an answer should have: of the things that one of this server has, only the logprobs of a text.
void refuse_includes(RequestBody& body) {
  const auto include = body.get<std::vector<std::string>>("include").value_or(std::vector<std::string>());
  if (std::find(include.begin(), include.end(), "message.output_text.logprobs") == include.end()) return;
  bad_request({"include without message.output_text.logprobs", "it", "use /v1/chat/completions, which has logprobs",
               "include", "unsupported_parameter"});
}

// The name of a chat's field in this protocol.
std::string field_of(const std::string& chat_field) {
  for (const auto& [theirs, ours] : {std::pair{"messages", "input"},
                                     {"max_completion_tokens", "max_output_tokens"},
                                     {"response_format", "text.format"},
                                     {"reasoning_effort", "reasoning"}}) {
    if (chat_field.starts_with(theirs)) return ours;
  }
  return chat_field;
}

}  // namespace

ResponsesRequest read_responses_request(const std::string& text, const ServedModel& model) {
  RequestBody body(text);
  refuse_state(body);
  refuse_includes(body);
  OutJson chat = {{"messages", messages_of(body)}};
  for (const char* field : kSame) {
    if (const auto value = body.json(field)) chat[field] = value->raw();
  }
  const auto limit = body.integer("max_output_tokens", 1, INT64_MAX);
  if (limit) chat["max_completion_tokens"] = *limit;
  if (const auto reasoning = body.json("reasoning")) {
    const auto effort = body.guarded("reasoning", [&] { return reasoning->get<std::string>("effort", ""); });
    if (!effort.empty()) chat["reasoning_effort"] = effort;
  }
  add_response_tools(body, chat);
  add_format(body, chat);
  body.ignore({"store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key",
               "prompt_cache_retention", "max_tool_calls", "stream_options"});
  ResponsesRequest request;
  try {
    request.generation = read_chat_request(dump(chat), model);
  } catch (const ApiError& error) {
    throw ApiError(error.status, error.what(), field_of(error.param), error.code);
  }
  request.generation.unknown = body.unknown();
  const OutJson& given = body.raw();
  const auto or_else = [&](const char* field, OutJson otherwise) {
    const auto found = given.find(field);
    return found == given.end() || found->is_null() ? std::move(otherwise) : *found;
  };
  const RowSampling& sampling = request.generation.sampling;
  request.settings = {{"instructions", or_else("instructions", nullptr)},
                      {"max_output_tokens", or_else("max_output_tokens", nullptr)},
                      {"metadata", or_else("metadata", OutJson::object())},
                      {"parallel_tool_calls", or_else("parallel_tool_calls", true)},
                      {"previous_response_id", nullptr},
                      {"reasoning", or_else("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
                      {"store", false},
                      {"temperature", sampling.temperature},
                      {"text", or_else("text", {{"format", {{"type", "text"}}}})},
                      {"tool_choice", or_else("tool_choice", "auto")},
                      {"tools", or_else("tools", OutJson::array())},
                      {"top_p", sampling.top_p},
                      {"truncation", "disabled"}};
  return request;
}

}  // namespace hotswap::serve
