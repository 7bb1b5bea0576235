// One prompt to the end of its answer, timed: what `generate` and the demo share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

struct Answer {
  std::vector<int64_t> ids;  // new ones, an end-of-text id included
  std::string text;          // of them, without special tokens
  double prefill_ms = 0;     // until the first token is there
  double decode_ms = 0;      // of the others
  // Of the tokens after the first; of the first where there is no other.
  double tokens_per_second() const;
};

// on_text gets each piece of the text as soon as it is certain; it may be empty.
using TextCallback = std::function<void(const std::string& piece)>;
Answer answer(CausalLM& model, const Tokenizer* tokenizer, const std::vector<int64_t>& prompt,
              const GenerationConfig& config, const TextCallback& on_text = nullptr);

}  // namespace hotswap
