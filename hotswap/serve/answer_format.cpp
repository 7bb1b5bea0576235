#include "hotswap/serve/answer_format.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "hotswap/grammar/token_bytes.h"

namespace hotswap::serve {
namespace {

constexpr const char* kInvalid = "structured_output_error";  // a field of our own

OutJson bytes_json(const std::string& bytes) {
  OutJson out = OutJson::array();
  for (const char byte : bytes) out.push_back(static_cast<unsigned char>(byte));
  return out;
}

OutJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

// JSON has no infinity; this is what OpenAI writes for it.
double finite(double logprob) { return std::max(logprob, -9999.0); }

OutJson token_json(const Tokenizer& tokenizer, int64_t id, double logprob) {
  const grammar::TokenText token = grammar::TokenTexts(tokenizer).of(id);
  return {{"token", token.text}, {"logprob", finite(logprob)}, {"bytes", bytes_json(token.bytes)}};
}

// Both names of reasoning: each has clients that read no other.
OutJson reasoning_json(const std::string& text) { return {{"reasoning_content", text}, {"reasoning", text}}; }

OutJson message_json(const Answer& answer) {
  const bool only_calls = answer.text.empty() && !answer.calls.empty();
  OutJson message = {
      {"role", "assistant"}, {"content", only_calls ? OutJson() : OutJson(answer.text)}, {"refusal", nullptr}};
  if (!answer.reasoning.empty()) message.update(reasoning_json(answer.reasoning));
  for (const ToolCall& call : answer.calls) {
    message["tool_calls"].push_back({{"id", random_id("call_")},
                                     {"type", "function"},
                                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

// The id, type and name of a call once, then pieces of its arguments.
OutJson delta_json(const MessagePart& part) {
  OutJson call = {{"index", part.call}};
  switch (part.kind) {
    case MessagePart::Kind::kContent:
      return {{"content", part.text}};
    case MessagePart::Kind::kReasoning:
      return reasoning_json(part.text);
    case MessagePart::Kind::kCall:
      call.update(
          {{"id", random_id("call_")}, {"type", "function"}, {"function", {{"name", part.text}, {"arguments", ""}}}});
      break;
    case MessagePart::Kind::kArguments:
      call["function"] = {{"arguments", part.text}};
      break;
  }
  OutJson calls = OutJson::array();
  calls.push_back(std::move(call));
  return {{"tool_calls", std::move(calls)}};
}

}  // namespace

std::string dump(const OutJson& json) { return json.dump(-1, ' ', false, OutJson::error_handler_t::replace); }

std::string event(const OutJson& json) { return "data: " + dump(json) + "\n\n"; }

std::string random_id(const char* prefix) {
  constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random(std::random_device{}());
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kDigits[random() % 36];
  return id;
}

AnswerFormat::AnswerFormat(const Tokenizer& tokenizer, bool chat, bool logprobs, const std::string& model)
    : tokenizer_(tokenizer),
      chat_(chat),
      logprobs_(logprobs),
      id_(random_id(chat ? "chatcmpl-" : "cmpl-")),
      model_(model),
      created_(std::time(nullptr)) {}

OutJson AnswerFormat::head(bool chunk) const {
  const char* object = !chat_ ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

OutJson AnswerFormat::chat_logprobs(const std::vector<ShownToken>& tokens) const {
  OutJson content = OutJson::array();
  for (const ShownToken& token : tokens) {
    OutJson entry = token_json(tokenizer_, token.id, token.logprobs.logprob);
    entry["top_logprobs"] = OutJson::array();
    for (const auto& [id, logprob] : token.logprobs.top) {
      entry["top_logprobs"].push_back(token_json(tokenizer_, id, logprob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The form of before there were chats: parallel lists.
OutJson AnswerFormat::text_logprobs(const Answer& answer) const {
  OutJson tokens = OutJson::array(), logprobs = OutJson::array(), top = OutJson::array(), offsets = OutJson::array();
  const auto add = [&](int64_t id, const TokenLogprobs* values, int64_t offset) {
    tokens.push_back(grammar::TokenTexts(tokenizer_).of(id).text);
    logprobs.push_back(values == nullptr ? OutJson() : OutJson(finite(values->logprob)));
    OutJson best = values == nullptr ? OutJson() : OutJson::object();
    if (values != nullptr) {
      for (const auto& [other, logprob] : values->top) {
        // Parts of characters may have equal texts: the best one's logprob stays.
        best.emplace(grammar::TokenTexts(tokenizer_).of(other).text, finite(logprob));
      }
    }
    top.push_back(std::move(best));
    offsets.push_back(offset);
  };
  for (size_t i = 0; i < answer.prompt.size(); ++i) {
    const bool has = i > 0 && i - 1 < answer.prompt_logprobs.size();
    add(answer.prompt[i], has ? &answer.prompt_logprobs[i - 1] : nullptr, answer.prompt_offsets[i]);
  }
  const int64_t echoed = characters(answer.prompt_text);
  for (const ShownToken& token : answer.tokens) add(token.id, &token.logprobs, echoed + token.offset);
  return {{"tokens", tokens}, {"token_logprobs", logprobs}, {"top_logprobs", top}, {"text_offset", offsets}};
}

std::string AnswerFormat::whole(const std::vector<Answer>& answers, const Usage& usage) const {
  OutJson body = head(/*chunk=*/false), choices = OutJson::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer& answer = answers[i];
    OutJson choice = {{"index", i}};
    if (chat_) {
      choice["message"] = message_json(answer);
    } else {
      choice["text"] = answer.prompt_text + answer.text;
    }
    choice["logprobs"] = !logprobs_ ? OutJson() : chat_ ? chat_logprobs(answer.tokens) : text_logprobs(answer);
    choice["finish_reason"] = answer.finish_reason;
    if (!answer.invalid.empty()) choice[kInvalid] = answer.invalid;
    choices.push_back(std::move(choice));
  }
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage);
  return dump(body);
}

std::string AnswerFormat::first(size_t choice, bool null_usage) const {
  if (!chat_) return "";
  OutJson body = head(/*chunk=*/true);
  body["choices"] = OutJson::array({{{"index", choice},
                                     {"delta", {{"role", "assistant"}, {"content", ""}}},
                                     {"logprobs", nullptr},
                                     {"finish_reason", nullptr}}});
  if (null_usage) body["usage"] = nullptr;
  return event(body);
}

OutJson AnswerFormat::logprobs_of(const TextPiece& piece) const {
  if (!logprobs_ || piece.tokens.empty()) return nullptr;
  return chat_ ? chat_logprobs(piece.tokens) : text_logprobs({.tokens = piece.tokens});
}

// The text of a piece and the end of an answer are two chunks, as clients expect them.
std::string AnswerFormat::piece(size_t choice, const TextPiece& piece, bool null_usage) const {
  std::string out;
  const auto add = [&](const OutJson& delta, const OutJson& text, const OutJson& logprobs, const OutJson& reason) {
    OutJson body = head(/*chunk=*/true), entry = {{"index", choice}};
    entry[chat_ ? "delta" : "text"] = chat_ ? delta : text;
    entry["logprobs"] = logprobs;
    entry["finish_reason"] = reason;
    if (!reason.is_null() && !piece.invalid.empty()) entry[kInvalid] = piece.invalid;
    body["choices"] = OutJson::array({std::move(entry)});
    if (null_usage) body["usage"] = nullptr;
    out += event(body);
  };
  if (!piece.text.empty() || !piece.tokens.empty() || !piece.parts.empty()) {
    const OutJson logprobs = logprobs_of(piece);
    if (piece.parts.empty()) add({{"content", piece.text}}, piece.text, logprobs, nullptr);
    for (size_t i = 0; i < piece.parts.size(); ++i) {
      add(delta_json(piece.parts[i]), "", i == 0 ? logprobs : OutJson(), nullptr);
    }
  }
  if (piece.finish_reason != nullptr) add(OutJson::object(), "", nullptr, piece.finish_reason);
  return out;
}

std::string AnswerFormat::usage(const Usage& usage) const {
  OutJson body = head(/*chunk=*/true);
  body["choices"] = OutJson::array();
  body["usage"] = usage_json(usage);
  return event(body);
}

}  // namespace hotswap::serve
