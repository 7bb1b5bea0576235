#include "hotswap/training/data/example_of.h"

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

using Value = nlohmann::ordered_json;
using Ids = std::vector<int64_t>;
using Span = std::pair<size_t, size_t>;  // bytes [begin, end)

const ChatTemplate& required(const ChatTemplate* chat, const Json& line) {
  if (chat != nullptr) return *chat;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a model with a chat template, for the messages at ", line.where()),
               .got = "one without",
               .next = "give the data \"text\", or \"prompt\" with \"completion\"; or use an instruct (chat) model"});
}

// As TRL: a text ends with the end of text, once.
Ids ended(Ids ids, const Tokenizer& tokenizer) {
  const auto eos = tokenizer.special_ids().eos;
  if (eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
  return ids;
}

// Labels from the first token on that prompt and whole do not share: a tokenizer may merge across the boundary.
Example learned_after(const Ids& prompt, Ids whole) {
  Example example{.ids = std::move(whole)};
  const auto shared = std::mismatch(prompt.begin(), prompt.end(), example.ids.begin(), example.ids.end()).first;
  example.labels = example.ids;
  std::fill_n(example.labels.begin(), shared - prompt.begin(), -100);
  return example;
}

// A template writes a turn without content as an empty one, and that would be learned.
void check_turns(const Json& messages, const Json& line) {
  int64_t number = 0;
  for (const Json& message : messages.elements()) {
    ++number;
    const auto filled = [&](const char* key) {
      const auto found = message.raw().find(key);
      return found != message.raw().end() && !found->is_null();
    };
    const bool calls = filled("tool_calls") && !message.raw().at("tool_calls").empty();
    if (message.is_object() && (filled("content") || calls)) continue;
    std::vector<std::string> keys;
    for (const auto& [key, value] : message.items()) keys.push_back(value.raw().is_null() ? key + " = null" : key);
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("\"content\" or \"tool_calls\" in message ", number, " at ", line.where()),
                 .got = cat("the keys ", join(keys)),
                 .next = "give the turn its text, or drop it"});
  }
}

ChatRequest request_of(const Json& messages, const Json& line) {
  check_turns(messages, line);
  ChatRequest request{.messages = messages.raw()};
  if (const auto tools = line.find("tools")) request.tools = tools->raw();
  return request;
}

// The template's own words with the line.
template <typename Call>
auto at_line(const Json& line, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    throw Error({.kind = error.kind(),
                 .wanted = cat(error.wanted(), " at ", line.where()),
                 .got = error.got(),
                 .next = error.next()});
  }
}

Example of_prompt(const Json& line, const Tokenizer& tokenizer, const ChatTemplate* chat) {
  const Json prompt = line.child("prompt"), completion = line.child("completion");
  if (!prompt.is_array() && !completion.is_array()) {
    const auto first = prompt.as<std::string>();
    return learned_after(tokenizer.ids(first), ended(tokenizer.ids(first + completion.as<std::string>()), tokenizer));
  }
  prompt.elements();  // Error unless both are lists
  completion.elements();
  const ChatTemplate& turns = required(chat, line);
  check_turns(completion, line);
  ChatRequest opening = request_of(prompt, line), whole = opening;
  opening.add_generation_prompt = true;
  for (const Value& message : completion.raw()) whole.messages.push_back(message);
  return at_line(line, [&] { return learned_after(turns.ids(tokenizer, opening), turns.ids(tokenizer, whole)); });
}

std::string role_of(const Value& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() ? role->get<std::string>() : "";
}

// Of a template without {% generation %}: what it writes for an assistant's turn is what the text up to this turn has
// more than the text before it with the words that begin an answer. White space at the end of a turn is not learned.
std::vector<Span> spans_by_prefixes(const ChatTemplate& chat, const ChatRequest& whole, const std::string& text,
                                    const Json& line) {
  std::vector<Span> spans;
  ChatRequest part = whole;
  part.messages = Value::array();
  for (const Value& message : whole.messages) {
    const bool learned = role_of(message) == "assistant";
    part.add_generation_prompt = true;
    const std::string before = learned ? chat.render(part) : "";
    part.messages.push_back(message);
    if (!learned) continue;
    part.add_generation_prompt = false;
    const std::string after = chat.render(part);
    if (!text.starts_with(before) || !text.starts_with(after) || after.size() < before.size()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = cat("a chat template that writes a turn the same whatever follows, at ", line.where()),
                   .got = cat("one that writes message ", part.messages.size(), " of ", whole.messages.size(),
                              " otherwise in the whole conversation"),
                   .next = "mark the assistant's turns in the template by {% generation %}, or train on \"prompt\" and "
                           "\"completion\""});
    }
    const size_t end = text.find_last_not_of(" \t\r\n", after.size() - 1) + 1;
    if (end > before.size()) spans.emplace_back(before.size(), end);
  }
  return spans;
}

// Offsets of tokens are in characters; those of spans in bytes.
std::vector<size_t> bytes_of_characters(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) starts.push_back(at);
  }
  starts.push_back(text.size());
  return starts;
}

Example learned_in(const std::vector<Span>& spans, const std::string& text, const Tokenizer& tokenizer) {
  const Encoding encoding = tokenizer.encode(text, /*add_special_tokens=*/false);
  const auto byte_at = bytes_of_characters(text);
  Example example{.ids = encoding.ids, .labels = Ids(encoding.ids.size(), -100)};
  for (size_t i = 0; i < example.ids.size(); ++i) {
    const size_t begin = byte_at.at(static_cast<size_t>(encoding.offsets[i].first));
    const bool learned = std::any_of(spans.begin(), spans.end(),
                                     [&](const Span& span) { return begin >= span.first && begin < span.second; });
    if (learned) example.labels[i] = example.ids[i];
  }
  return example;
}

Example of_messages(const Json& line, const Tokenizer& tokenizer, const ChatTemplate* chat) {
  const Json messages = line.child("messages");
  const auto all = messages.elements();
  if (std::none_of(all.begin(), all.end(), [](const Json& one) { return role_of(one.raw()) == "assistant"; })) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a message of the role assistant at ", line.where(), ": its turns are learned"),
                 .got = cat(all.size(), " messages of other roles"),
                 .next = "correct the roles, or drop the line"});
  }
  const ChatTemplate& turns = required(chat, line);
  const ChatRequest request = request_of(messages, line);
  return at_line(line, [&] {
    RenderedChat rendered = turns.render_with_spans(request);
    if (rendered.assistant.empty()) rendered.assistant = spans_by_prefixes(turns, request, rendered.text, line);
    return learned_in(rendered.assistant, rendered.text, tokenizer);
  });
}

}  // namespace

std::string form_of(const Json& line) {
  const bool text = line.has("text"), messages = line.has("messages");
  const bool prompt = line.has("prompt") && line.has("completion");
  if (text + messages + prompt == 1) return text ? "text" : messages ? "messages" : "prompt and completion";
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("one of \"text\", \"messages\", or \"prompt\" with \"completion\" at ", line.where()),
               .got = keys.empty() ? "an object without a key" : cat("the keys ", join(keys)),
               .next = "rename the fields"});
}

Example example_of(const Json& line, const Tokenizer& tokenizer, const ChatTemplate* chat) {
  if (line.has("messages")) return of_messages(line, tokenizer, chat);
  if (line.has("prompt")) return of_prompt(line, tokenizer, chat);
  Example example{.ids = ended(tokenizer.ids(line.at<std::string>("text")), tokenizer)};
  example.labels = example.ids;
  return example;
}

}  // namespace hotswap
