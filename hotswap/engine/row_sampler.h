// The next token of one sequence from its logits on the host, with settings of its own. A draw is a function of the
// logits, the seed and the position only: the same whatever else is in the batch, and again when tokens are run again.
// For sequences that need the host, because log-probabilities are reported. BatchSampler draws the same token from the
// same logits on their device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
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
  std::optional<TokenLogprobs> logprobs = std::nullopt;
  std::string error = {};  // why there is none
};

// Which tokens may come next in one sequence: a grammar, for example. Used by one thread at a time, of two sequences at
// once by two.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Bit id % 32 of word id / 32: whether the token may come next. words: [ceil(vocab / 32)]
  virtual void allowed(std::span<int32_t> words) = 0;
  virtual void accept(int64_t id) = 0;  // the token that came; Error where it may not
  virtual bool ended() const = 0;       // nothing more may come
};

// Words of a constraint for the ids of a vocabulary.
inline int64_t constraint_words(int64_t vocab) { return (vocab + 31) / 32; }
// TokenConstraint::allowed(). Error where it allows no id of the vocabulary.
void write_allowed(TokenConstraint& constraint, int64_t vocab, std::span<int32_t> words);

class RowSampler {
 public:
  // Error on a setting that makes no sense, or an id of logit_bias outside the vocabulary.
  RowSampler(RowSampling settings, int64_t vocab);
  // logits: [vocab]; tokens: the prompt and the new ones so far
  // constraint: null where any token may come. Error where it allows none.
  SampledToken next(std::span<const float> logits, std::span<const int64_t> tokens, int64_t prompt_length,
                    TokenConstraint* constraint = nullptr) const;
  const RowSampling& settings() const { return settings_; }

 private:
  std::vector<float> adjusted(std::span<const float> logits, std::span<const int64_t> tokens, int64_t prompt) const;
  void suppress_ends(std::vector<float>& scores) const;
  int64_t draw(std::vector<float>& scores, int64_t position) const;
  RowSampling settings_;
};

TokenLogprobs logprobs_of(std::span<const float> logits, int64_t id, int64_t top);

// What a token is drawn by, relative to the most likely one's: an integer, so that sums of weights are the same in
// any order. 2^18 of the maximal ones fit; what is less likely than 2^-45 of the most likely token has none.
inline constexpr double kMaxWeight = 0x1p44;
int64_t draw_weight(float score_less_best);
// That the fewest tokens of top_p have in total at least.
int64_t nucleus_weight(int64_t total, double top_p);

// Uniform in [0, 1): Philox 4x32 with 10 rounds of (seed, position).
double uniform_draw(uint64_t seed, uint64_t position);

}  // namespace hotswap
