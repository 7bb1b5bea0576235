// The next token of one sequence from its logits on the host, with settings of its own. A draw is a function of the
// logits, the seed and the position only: the same whatever else is in the batch, and again when tokens are run again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hotswap {

struct RowSampling {
  double temperature = 1;  // 0: the argmax
  int64_t top_k = 0;       // 0: off
  double top_p = 1, min_p = 0;
  double repetition_penalty = 1;                       // of tokens of the prompt and new ones
  double presence_penalty = 0, frequency_penalty = 0;  // of new tokens only
  uint64_t seed = 0;
  std::vector<std::pair<int64_t, double>> logit_bias = {};  // added to the logits of these ids
  int64_t min_new_tokens = 0;                               // before that none of `ends` is chosen
  std::vector<int64_t> ends = {};
  std::optional<int64_t> logprobs = std::nullopt;  // report the token's, and those of this count of best ones

  // Whether the token is the argmax of the logits, and no more is reported.
  bool is_argmax() const;
};

// log_softmax of the raw logits, before penalties, bias and temperature.
struct TokenLogprobs {
  double logprob = 0;
  std::vector<std::pair<int64_t, double>> top;  // id and logprob, best first; of equal ones the smaller id first
};

struct SampledToken {
  int64_t id = 0;
  std::optional<TokenLogprobs> logprobs;
};

class RowSampler {
 public:
  // Error on a setting that makes no sense, or an id of logit_bias outside the vocabulary.
  RowSampler(RowSampling settings, int64_t vocab);
  // logits: [vocab]; tokens: the prompt and the new ones so far
  SampledToken next(std::span<const float> logits, std::span<const int64_t> tokens, int64_t prompt_length) const;
  const RowSampling& settings() const { return settings_; }

 private:
  std::vector<float> adjusted(std::span<const float> logits, std::span<const int64_t> tokens, int64_t prompt) const;
  int64_t draw(std::vector<float>& scores, int64_t position) const;
  RowSampling settings_;
};

TokenLogprobs logprobs_of(std::span<const float> logits, int64_t id, int64_t top);

// Uniform in [0, 1): Philox 4x32 with 10 rounds of (seed, position).
double uniform_draw(uint64_t seed, uint64_t position);

}  // namespace hotswap
