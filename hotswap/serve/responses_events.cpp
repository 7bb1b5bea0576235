#include "hotswap/serve/responses_events.h"

#include <ctime>

namespace hotswap::serve {
namespace {

using Kind = MessagePart::Kind;

// The names of what a kind of item holds.
struct ItemNames {
  const char *id_prefix, *type, *part, *delta, *done;
};

ItemNames names_of(Kind kind) {
  switch (kind) {
    case Kind::kReasoning:
      return {"rs_", "reasoning", "reasoning_text", "response.reasoning_text.delta", "response.reasoning_text.done"};
    case Kind::kContent:
      return {"msg_", "message", "output_text", "response.output_text.delta", "response.output_text.done"};
    default:
      return {"fc_", "function_call", "", "response.function_call_arguments.delta",
              "response.function_call_arguments.done"};
  }
}

OutJson part_json(Kind kind, const std::string& text) {
  OutJson part = {{"type", names_of(kind).part}, {"text", text}};
  if (kind == Kind::kContent) part.update({{"annotations", OutJson::array()}, {"logprobs", OutJson::array()}});
  return part;
}

OutJson response_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

ResponsesEvents::ResponsesEvents(OutJson settings, const std::string& model)
    : settings_(std::move(settings)), model_(model), created_(std::time(nullptr)) {}

void ResponsesEvents::add(const char* type, OutJson fields) {
  OutJson body = {{"type", type}, {"sequence_number", sequence_++}};
  body.update(fields);
  out_ += cat("event: ", type, "\n") + event(body);
}

OutJson ResponsesEvents::response() const {
  const bool cut = status_ == "incomplete";
  OutJson body = {{"id", id_},
                  {"object", "response"},
                  {"created_at", created_},
                  {"status", status_},
                  {"background", false},
                  {"error", error_},
                  {"incomplete_details", cut ? OutJson{{"reason", "max_output_tokens"}} : OutJson()},
                  {"model", model_},
                  {"output", output_},
                  {"usage", usage_}};
  body.update(settings_);
  return body;
}

void ResponsesEvents::begin() {
  if (sequence_ > 0) return;
  add("response.created", {{"response", response()}});
  add("response.in_progress", {{"response", response()}});
}

void ResponsesEvents::open(Kind kind, const std::string& name) {
  close();
  is_open_ = true;
  kind_ = kind;
  const ItemNames names = names_of(kind);
  OutJson item = {{"id", random_id(names.id_prefix)}, {"type", names.type}, {"status", "in_progress"}};
  if (kind == Kind::kCall) {
    item.update({{"call_id", random_id("call_")}, {"name", name}, {"arguments", ""}});
  } else {
    item["content"] = OutJson::array();
    item.update(kind == Kind::kContent ? OutJson{{"role", "assistant"}} : OutJson{{"summary", OutJson::array()}});
  }
  const size_t index = output_.size();
  output_.push_back(item);
  add("response.output_item.added", {{"output_index", index}, {"item", item}});
  if (kind == Kind::kCall) return;
  output_.back()["content"].push_back(part_json(kind, ""));
  add("response.content_part.added",
      {{"item_id", item["id"]}, {"output_index", index}, {"content_index", 0}, {"part", part_json(kind, "")}});
}

// The events that end the item that came last.
void ResponsesEvents::close() {
  if (!std::exchange(is_open_, false)) return;
  OutJson& item = output_.back();
  const size_t index = output_.size() - 1;
  OutJson item_fields = {{"item_id", item["id"]}, {"output_index", index}};
  const ItemNames names = names_of(kind_);
  if (kind_ == Kind::kCall) {
    OutJson done = item_fields;
    done.update({{"name", item["name"]}, {"arguments", item["arguments"]}});
    add(names.done, std::move(done));
  } else {
    item_fields["content_index"] = 0;
    const OutJson& part = item["content"][0];
    OutJson done = item_fields, ended = item_fields;
    done["text"] = part["text"];
    if (kind_ == Kind::kContent) done["logprobs"] = OutJson::array();
    add(names.done, std::move(done));
    ended["part"] = part;
    add("response.content_part.done", std::move(ended));
  }
  item["status"] = finish_reason_ == "length" ? "incomplete" : "completed";
  add("response.output_item.done", {{"output_index", index}, {"item", item}});
}

// More of an item's text: its last part's, or a call's arguments.
void ResponsesEvents::text(Kind kind, const std::string& more) {
  if (more.empty()) return;
  if (kind != Kind::kCall && !(is_open_ && kind_ == kind)) open(kind);
  OutJson& item = output_.back();
  OutJson& text = kind == Kind::kCall ? item["arguments"] : item["content"][0]["text"];
  text = text.get<std::string>() + more;
  OutJson fields = {{"item_id", item["id"]}, {"output_index", output_.size() - 1}};
  if (kind != Kind::kCall) fields["content_index"] = 0;
  fields["delta"] = more;
  if (kind == Kind::kContent) fields["logprobs"] = OutJson::array();
  add(names_of(kind).delta, std::move(fields));
}

void ResponsesEvents::add_part(const MessagePart& part) {
  switch (part.kind) {
    case Kind::kContent:
    case Kind::kReasoning:
      return text(part.kind, part.text);
    case Kind::kCall:
      return open(Kind::kCall, part.text);
    case Kind::kArguments:
      return text(Kind::kCall, part.text);
  }
}

std::string ResponsesEvents::pieces(const std::vector<std::pair<size_t, TextPiece>>& pieces) {
  begin();
  for (const auto& [_, piece] : pieces) {
    if (piece.parts.empty()) text(Kind::kContent, piece.text);
    for (const MessagePart& part : piece.parts) add_part(part);
    if (piece.finish_reason != nullptr) finish_reason_ = piece.finish_reason;
  }
  return take();
}

std::string ResponsesEvents::end(const Usage& usage) {
  if (output_.empty()) open(Kind::kContent);  // an answer of no text is a message all the same
  close();
  usage_ = response_usage(usage);
  status_ = finish_reason_ == "length" ? "incomplete" : "completed";
  add(status_ == "incomplete" ? "response.incomplete" : "response.completed", {{"response", response()}});
  return take();
}

std::string ResponsesEvents::failed(const ApiError& error) {
  begin();
  status_ = "failed";
  error_ = {{"code", "server_error"}, {"message", error.what()}};
  add("response.failed", {{"response", response()}});
  return take();
}

}  // namespace hotswap::serve
