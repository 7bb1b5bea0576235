// How to generate: what generation_config.json says and a caller overrides. The loop is in generation/generate.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

// Of a beam search, when it ends: where no beam can become better than those that have ended, by a guess at the length
// to come; once as many as num_beams have ended; or where none can become better at all.
enum class EarlyStopping : uint8_t { kFalse, kTrue, kNever };

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
  // Guesses that are verified several at a time; the text is the same. Of prompt lookup: what followed the last tokens
  // earlier in the text, at most this number; unset: off.
  std::optional<int64_t> prompt_lookup_num_tokens = std::nullopt;
  std::optional<int64_t> max_matching_ngram_size = std::nullopt;  // else 2: how many last tokens are looked up at most
  // Of an assistant (GenerateArguments::assistant), where the caller says nothing as its own generation config does.
  std::optional<int64_t> num_assistant_tokens = std::nullopt;  // else 20
  // else "constant"; "heuristic_transient": 2 more after a guess that was right, else 1 less; "heuristic": the
  // assistant's config keeps the number
  std::optional<std::string> num_assistant_tokens_schedule = std::nullopt;
  std::optional<double> assistant_confidence_threshold = std::nullopt;  // else 0.4: a less probable token ends a guess
  // Beams: the most probable texts as a whole, and how many of them each prompt gets. Of sampling:
  // how many texts are drawn of each prompt.
  std::optional<int64_t> num_beams = std::nullopt, num_return_sequences = std::nullopt;
  std::optional<double> length_penalty = std::nullopt;  // else 1: a text's score is divided by its length to that power
  std::optional<EarlyStopping> early_stopping = std::nullopt;  // else false
  // Rules for single tokens and runs of them, in force before sampling.
  std::optional<std::vector<std::vector<int64_t>>> bad_words_ids = std::nullopt;  // runs that never come
  std::optional<std::vector<std::pair<std::vector<int64_t>, double>>> sequence_bias = std::nullopt;  // added to scores
  std::optional<std::vector<int64_t>> suppress_tokens = std::nullopt, begin_suppress_tokens = std::nullopt;
  std::optional<int64_t> forced_bos_token_id = std::nullopt;               // after a prompt of one token
  std::optional<std::vector<int64_t>> forced_eos_token_id = std::nullopt;  // as the last token of max_length
  std::optional<std::pair<int64_t, double>> exponential_decay_length_penalty =
      std::nullopt;                                                    // from which token, factor
  std::optional<double> encoder_repetition_penalty = std::nullopt;     // of all that is not in the prompt
  std::optional<int64_t> encoder_no_repeat_ngram_size = std::nullopt;  // no run of n tokens of the prompt comes again
  std::optional<bool> remove_invalid_values = std::nullopt, renormalize_logits = std::nullopt;
  // Of sampling alone.
  std::optional<double> typical_p = std::nullopt, epsilon_cutoff = std::nullopt, eta_cutoff = std::nullopt,
                        top_h = std::nullopt;
  // What generation_config.json asks for and generate() has not: it says so instead of generating something else.
  nlohmann::ordered_json not_implemented = nlohmann::ordered_json::object();
};

// Of a parsed generation_config.json: only what it sets.
GenerationConfig read_generation_config(const Json& json);
// The other way: eos_token_id and pad_token_id among them, the seed not.
nlohmann::ordered_json to_json(const GenerationConfig& config);

// `over` where it says something, `under` elsewhere.
GenerationConfig merged(const GenerationConfig& over, const GenerationConfig& under);

// Error naming what the config asks for and generate() has not.
void require_implemented(const GenerationConfig& config);

}  // namespace hotswap
