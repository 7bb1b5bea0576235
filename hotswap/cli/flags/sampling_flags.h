// The flags of the sampler, shared by the verbs that generate.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/models/generation_config.h"

namespace hotswap {

struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop_strings;
  int64_t max_new_tokens;

  explicit SamplingFlags(int64_t max_tokens) : max_new_tokens(max_tokens) {}
};

void add_sampling_flags(CLI::App& verb, SamplingFlags& flags);

// Guessed tokens, under transformers' names. The text is the same without.
struct GuessFlags {
  std::optional<int64_t> prompt_lookup_num_tokens, max_matching_ngram_size, num_assistant_tokens;
  std::optional<std::string> num_assistant_tokens_schedule;
  std::optional<double> assistant_confidence_threshold;
  std::string assistant;  // a model as MODEL names one; empty: none
};
void add_guess_flags(CLI::App& verb, GuessFlags& flags);
void set_guesses(GenerationConfig& config, const GuessFlags& flags);
// do_sample: true where a sampler flag is present and the temperature is not 0; false at temperature 0; unset
// where no flag decides, so that generation_config.json does.
GenerationConfig generation_config_of(const SamplingFlags& flags);

}  // namespace hotswap
