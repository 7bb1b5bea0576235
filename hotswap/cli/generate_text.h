// Prompts to the end of their continuations, timed: what `generate`, `chat` and the demo share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

struct TimedText {
  std::vector<int64_t> ids;                                            // new ones, an end-of-text id included
  std::string text;                                                    // of them, without special tokens
  double prefill_ms = 0;                                               // until the first token is there
  double decode_ms = 0;                                                // of the others
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;  // as GenerateResult has them
  std::vector<int64_t> accepted = {};                                  // these three, too
  int64_t guessed_tokens = 0, repeated_tokens = 0;
};

// on_text gets each piece of the text as soon as it is certain; it may be empty.
using TextCallback = std::function<void(const std::string& piece)>;
TimedText generate_text(CausalLM& model, const Tokenizer* tokenizer, const std::vector<int64_t>& prompt,
                        const GenerationConfig& config, const TextCallback& on_text = nullptr,
                        CausalLM* assistant = nullptr);

// Several prompts as one batch, each of its own length. Times and rates are the whole batch's, the same in every text.
std::vector<TimedText> generate_texts(CausalLM& model, const Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts, const GenerationConfig& config);

}  // namespace hotswap
