// The loop over tokens: prefill, then one token a step with a KV cache; on a GPU the steps are a CUDA graph.
//
//   const auto show = [](const std::vector<int64_t>& next) { return std::cout << next[0] << " ", true; };
//   const auto result = generate(*model, {.input_ids = ids, .config = {.max_new_tokens = 50}, .on_tokens = show});
//   const Tensor rows = result.ids;         // prompt and continuation, finished rows filled up with the pad token
//   const auto first = result.new_ids[0];   // of the first row alone, its eos included
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"

namespace hotswap {

class Tokenizer;

struct GenerateArguments {
  Tensor input_ids;                      // [batch, time] int64
  GenerationConfig config = {};          // over the model's generation_config()
  Tensor attention_mask = {};            // [batch, time], 0 where a prompt is padded; padding stands on the left
  const Tokenizer* tokenizer = nullptr;  // wanted for stop_strings alone
  // A smaller model of the same vocabulary, which guesses tokens that `model` then verifies: the text is the same.
  CausalLM* assistant = nullptr;
  // Called after every step with the new token of each row, pad where the row has ended; false ends the generation.
  std::function<bool(const std::vector<int64_t>& tokens)> on_tokens = nullptr;
};

struct GenerateResult {
  Tensor ids;                                 // [batch, time + steps]
  std::vector<std::vector<int64_t>> new_ids;  // a row each, without padding
  double prefill_ms = 0;                      // from the call to the first token: the time to first token
  double decode_ms = 0;                       // of all further tokens
  int64_t steps = 0;                          // forwards, the prefill included
  bool captured = false;                      // steps ran as a CUDA graph
  std::string why_not_captured;               // else: the reason
  int64_t prompt_tokens = 0;                  // of all rows, without padding
  // Where tokens were guessed: how many new tokens each forward after the prompt's gave, in order.
  std::vector<int64_t> accepted = {};
  int64_t guessed_tokens = 0;   // that were verified
  int64_t repeated_tokens = 0;  // that ran once more by themselves, because two tokens were about equally probable
  double prefill_tokens_per_second() const;  // of the prompts, padding not counted, all rows together
  double decode_tokens_per_second() const;   // of the further tokens, all rows together; 0 where there was only one
};

GenerateResult generate(CausalLM& model, const GenerateArguments& arguments);

}  // namespace hotswap
