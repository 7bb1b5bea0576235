// How to generate: what generation_config.json says and a caller overrides. The loop is in generation/generate.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

// Unset: what the model's generation_config.json says, else what transformers does.
struct GenerationConfig {
  std::optional<int64_t> max_new_tokens = std::nullopt;  // else as max_length says, else 20
  std::optional<int64_t> min_new_tokens = std::nullopt;  // before so many no token that ends a row is chosen
  std::optional<bool> do_sample = std::nullopt;          // else greedy
  std::optional<double> temperature = std::nullopt;
  std::optional<int64_t> top_k = std::nullopt;  // 0: off
  std::optional<double> top_p = std::nullopt;   // 1: off
  std::optional<double> min_p = std::nullopt;   // of the best token's probability; 0: off
  std::optional<double> repetition_penalty = std::nullopt;
  std::optional<int64_t> no_repeat_ngram_size = std::nullopt;       // no so many tokens come twice; 0: off
  std::optional<uint64_t> seed = std::nullopt;                      // of the sampler; unset: torch's default generator
  std::optional<std::vector<int64_t>> eos_token_id = std::nullopt;  // {}: never stop
  std::optional<int64_t> pad_token_id = std::nullopt;               // unset: the first eos
  std::optional<std::vector<std::string>> stop_strings = std::nullopt;  // a row ends with them; {}: none
  std::optional<std::string> cache_implementation =
      std::nullopt;  // "dynamic" or "static"; unset: static on a GPU, else dynamic
  std::optional<int64_t> max_length = std::nullopt, min_length = std::nullopt;  // with the prompt
  // What generation_config.json asks for and generate() has not: it says so instead of generating something else.
  nlohmann::ordered_json not_implemented = nlohmann::ordered_json::object();
};

// Of a parsed generation_config.json: only what it sets. Error on beams.
GenerationConfig read_generation_config(const Json& json);
// The other way: eos_token_id and pad_token_id among them, the seed not.
nlohmann::ordered_json to_json(const GenerationConfig& config);

// `over` where it says something, `under` elsewhere.
GenerationConfig merged(const GenerationConfig& over, const GenerationConfig& under);

// Error naming what the config asks for and generate() has not.
void require_implemented(const GenerationConfig& config);

}  // namespace hotswap
