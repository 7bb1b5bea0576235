// transformers' rules for single tokens and runs of them, as they stand in a generation config: what is never
// generated, what has to come first or last, what becomes likelier. They read the text on the host, so that no captured
// step has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "hotswap/models/generation_config.h"

namespace hotswap {

using at::Tensor;

// Where a row is: rows of one call have equally many tokens.
struct RuledText {
  Tensor so_far;  // [batch, time] ids
  int64_t made;   // new ones among them
  int64_t prompt() const { return so_far.size(1) - made; }
};

class ScoreRules {
 public:
  // Error on a rule that makes no sense.
  explicit ScoreRules(const GenerationConfig& config);
  bool any() const { return any_; }
  static bool any(const GenerationConfig& config) { return ScoreRules(config).any(); }

  // In transformers' order: before the repetition penalty, before ends that come too early, and after those. scores:
  // [batch, vocab] float32 -> the same
  Tensor first(const Tensor& scores, const RuledText& text) const;
  Tensor second(const Tensor& scores, const RuledText& text) const;
  Tensor third(const Tensor& scores, const RuledText& text) const;

 private:
  using Run =
      std::pair<std::vector<int64_t>, double>;  // ids, and what is added to the score of the last after the others
  Tensor biased(const Tensor& scores, const Tensor& so_far, const std::vector<Run>& runs) const;
  Tensor ends_likelier(const Tensor& scores, int64_t made) const;
  bool any_ = false, removes_invalid_;
  std::vector<Run> biases_, bad_words_;
  double prompt_penalty_;
  int64_t prompt_ngram_, last_;
  std::vector<int64_t> eos_, suppressed_, suppressed_first_, forced_last_;
  std::optional<int64_t> forced_first_;
  std::optional<std::pair<int64_t, double>> decay_;
};

// Less likely where it is in ids, likelier below a penalty of 1. ids: [batch, time]
Tensor penalised(const Tensor& scores, const Tensor& ids, double penalty);

}  // namespace hotswap
