// A request for text, read and checked against the model: of /v1/chat/completions and /v1/completions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/engine/sequence.h"
#include "hotswap/grammar/grammar.h"
#include "hotswap/serve/message_parser.h"
#include "hotswap/serve/request_body.h"
#include "hotswap/serve/served_model.h"
#include "hotswap/serve/tools.h"

namespace hotswap::serve {

struct TextRules {  // how tokens become the answer's text
  std::vector<std::string> stop;
  bool include_stop = false, skip_special_tokens = true;
};

struct GenerationRequest {
  ServedModel::Named model = {};  // what answers carry, and its adapter
  std::vector<std::vector<int64_t>> prompts;
  int64_t n = 1;              // answers to each prompt
  RowSampling sampling = {};  // answer i of a prompt has the seed + i
  StopRules stop = {};        // max_new_tokens of the first prompt where the request sets none
  std::optional<int64_t> max_new_tokens = std::nullopt;  // as the request has it
  TextRules text = {};
  std::optional<AnswerRules> rules = std::nullopt;                       // of the answers' form
  std::shared_ptr<const grammar::CompiledGrammar> constraint = nullptr;  // of the rules, once compiled
  MessageRules message = {};                                             // how its text is read
  bool stream = false, include_usage = false;
  bool chat = true;
  bool continues = false;                 // the answer goes on with the prompt's text, not a message of its own
  bool echo = false;                      // of completions: the prompt before the answer
  std::string cache_salt = {};            // see Sequence
  std::vector<std::string> unknown = {};  // fields that were ignored because nothing knows them

  size_t choices() const { return prompts.size() * static_cast<size_t>(n); }
  // New tokens of an answer to the prompt: as the request has it, else what is left of the model's length.
  int64_t new_tokens(size_t prompt, int64_t max_model_len) const;
};

// ApiError (400, 404, 501) naming the field.
GenerationRequest read_chat_request(const std::string& body, const ServedModel& model);
GenerationRequest read_completion_request(const std::string& body, const ServedModel& model);

struct RenderedRequest {
  std::string text;
  ToolRequest tools;
};

// The text that the chat template makes of a request's messages.
RenderedRequest render_chat(RequestBody& body, const ServedModel& model);
// Of /tokenize and /v1/completions: `field` as a text, ids, or lists of them.
std::vector<std::vector<int64_t>> read_prompts(RequestBody& body, const std::string& field, const ServedModel& model);

// ApiError 400 where an id is none of the model's.
std::vector<int64_t> checked_ids(const Json& list, const std::string& field, int64_t vocab);

// What the request names; ApiError 404 where there is no such model.
ServedModel::Named named_model(RequestBody& body, const ServedModel& model);

}  // namespace hotswap::serve
