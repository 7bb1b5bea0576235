#include "hotswap/cli/flags/sampling_flags.h"

#include "hotswap/cli/flags/value_checks.h"

namespace hotswap {

void add_sampling_flags(CLI::App& verb, SamplingFlags& flags) {
  verb.add_option("--max-new-tokens", flags.max_new_tokens, "Maximum number of new tokens")
      ->check(above_zero())
      ->capture_default_str();
  verb.add_option("--temperature", flags.temperature, "Sample at this temperature; 0: greedy")->check(zero_or_more());
  verb.add_option("--top-k", flags.top_k, "Sample from the k most probable tokens; 0: from all")->check(zero_or_more());
  verb.add_option("--top-p", flags.top_p, "Sample from the most probable tokens whose probabilities sum to this")
      ->check(CLI::Range(0.0, 1.0));
  verb.add_option("--min-p", flags.min_p, "Keep tokens whose probability is at least this times the maximum")
      ->check(CLI::Range(0.0, 1.0));
  verb.add_option("--stop", flags.stop_strings, "A text that ends the answer; may be repeated")
      ->allow_extra_args(false);
  verb.add_option("--seed", flags.seed, "Seed of the sampler")->check(zero_or_more());
}

void add_guess_flags(CLI::App& verb, GuessFlags& flags) {
  verb.add_option("--prompt-lookup-num-tokens", flags.prompt_lookup_num_tokens,
                  "Guess up to N tokens that followed the last ones earlier in the text, and verify them in one "
                  "step; the answer is the same")
      ->check(above_zero());
  verb.add_option("--max-matching-ngram-size", flags.max_matching_ngram_size,
                  "Maximum number of last tokens that are looked up; default: 2")
      ->check(above_zero());
  verb.add_option("--assistant", flags.assistant, "A smaller model with the same tokenizer, whose tokens are the guess")
      ->type_name("MODEL");
  verb.add_option("--num-assistant-tokens", flags.num_assistant_tokens, "How many tokens it guesses; default: 20")
      ->check(above_zero());
  verb.add_option(
      "--num-assistant-tokens-schedule", flags.num_assistant_tokens_schedule,
      "constant (default), heuristic or heuristic_transient: more after a guess that was right, else fewer");
  verb.add_option("--assistant-confidence-threshold", flags.assistant_confidence_threshold,
                  "A guess ends with a token that is less probable to the assistant; default: 0.4")
      ->check(CLI::Range(0.0, 1.0));
}

void set_guesses(GenerationConfig& config, const GuessFlags& flags) {
  config.prompt_lookup_num_tokens = flags.prompt_lookup_num_tokens;
  config.max_matching_ngram_size = flags.max_matching_ngram_size;
  config.num_assistant_tokens = flags.num_assistant_tokens;
  config.num_assistant_tokens_schedule = flags.num_assistant_tokens_schedule;
  config.assistant_confidence_threshold = flags.assistant_confidence_threshold;
}

GenerationConfig generation_config_of(const SamplingFlags& flags) {
  GenerationConfig config{.max_new_tokens = flags.max_new_tokens,
                          .temperature = flags.temperature,
                          .top_k = flags.top_k,
                          .top_p = flags.top_p,
                          .min_p = flags.min_p,
                          .seed = flags.seed};
  if (flags.temperature || flags.top_k || flags.top_p || flags.min_p || flags.seed) {
    config.do_sample = flags.temperature != 0.0;
  }
  if (flags.temperature == 0.0) config.temperature = std::nullopt;
  if (!flags.stop_strings.empty()) config.stop_strings = flags.stop_strings;
  return config;
}

}  // namespace hotswap
