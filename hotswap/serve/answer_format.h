// Answers as JSON: of chat and of text completions, whole and as chunks of a stream.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hotswap/serve/answer_text.h"

namespace hotswap::serve {

using OutJson = nlohmann::ordered_json;

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts
};

struct ToolCall {
  std::string name, arguments = {};  // JSON
};

struct Answer {  // one choice, whole
  std::string text, reasoning;
  std::vector<ToolCall> calls;
  std::vector<ShownToken> tokens;
  std::string finish_reason, invalid;
  // Of an echoed prompt: its tokens, with the logprobs of all but the first where they are reported.
  std::vector<int64_t> prompt, prompt_offsets;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::string prompt_text;
};

class AnswerFormat {
 public:
  AnswerFormat(const Tokenizer& tokenizer, bool chat, bool logprobs, const std::string& model);
  std::string whole(const std::vector<Answer>& answers, const Usage& usage) const;
  // Events of a stream, "data: {...}\n\n" each.
  std::string first(size_t choice, bool null_usage) const;  // of a chat: the role; else nothing
  std::string piece(size_t choice, const TextPiece& piece, bool null_usage) const;
  std::string usage(const Usage& usage) const;

 private:
  OutJson head(bool chunk) const;
  OutJson chat_logprobs(const std::vector<ShownToken>& tokens) const;
  OutJson text_logprobs(const Answer& answer) const;
  OutJson logprobs_of(const TextPiece& piece) const;
  const Tokenizer& tokenizer_;
  bool chat_, logprobs_;
  std::string id_, model_;
  int64_t created_;
};

std::string dump(const OutJson& json);
std::string event(const OutJson& json);
std::string random_id(const char* prefix);

}  // namespace hotswap::serve
