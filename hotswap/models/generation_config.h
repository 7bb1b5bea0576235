// How to generate: what generation_config.json says and a caller overrides. The loop is in generation/generate.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

struct GenerationConfig {
  int64_t max_new_tokens = 20;
  // unset: what the model's generation_config.json says, else greedy
  std::optional<bool> do_sample = std::nullopt;
  std::optional<double> temperature = std::nullopt;
  std::optional<int64_t> top_k = std::nullopt;  // 0: off
  std::optional<double> top_p = std::nullopt;   // 1: off
  std::optional<double> repetition_penalty = std::nullopt;
  std::optional<uint64_t> seed = std::nullopt;                      // of the sampler; unset: torch's default generator
  std::optional<std::vector<int64_t>> eos_token_id = std::nullopt;  // {}: never stop
  std::optional<int64_t> pad_token_id = std::nullopt;               // unset: the first eos
  std::optional<std::string> cache_implementation =
      std::nullopt;  // "dynamic" or "static"; unset: static on a GPU, else dynamic
};

// Of a parsed generation_config.json: only what it sets. Error on a mode that is not implemented (beams).
GenerationConfig read_generation_config(const Json& json);

// `over` where it says something, `under` elsewhere.
GenerationConfig merged(const GenerationConfig& over, const GenerationConfig& under);

}  // namespace hotswap
