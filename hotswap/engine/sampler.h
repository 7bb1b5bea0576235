// From the logits of one position to the next token, in the order of transformers' processors: repetition penalty,
// runs of tokens that would come again, ends that come too early, temperature, top-k, top-p, min-p, then a draw. On the
// logits' device, and never waits for it, but for what is in score_rules.h.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>

#include "hotswap/engine/score_rules.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/generation_config.h"

namespace hotswap {

using at::Tensor;

class Sampler {
 public:
  // Each row's argmax: [batch, vocab] -> [batch] int64
  using Largest = std::function<Tensor(const Tensor& scores)>;

  // Error on a setting that makes no sense. Reads everything but the most tokens, the token of padding and texts.
  // Without `largest` torch's argmax.
  Sampler(const GenerationConfig& config, at::Device device, Largest largest = nullptr);

  // logits: [batch, vocab] any floating type; so_far: [batch, time] ids, read only where needs_history(); length: [1]
  // int64, how many of them are tokens so far; undefined: all. What follows them is some of these ids. made: [batch]
  // int64, new tokens of each row so far, read only where needs_made(); undefined: as many as next() was called before
  // -> [batch]
  Tensor next(const Tensor& logits, const Tensor& so_far, const Tensor& length = {}, const Tensor& made = {});
  // What next() chooses from, after all that does not depend on sampling: [batch, vocab], float32 unless is_argmax()
  Tensor processed(const Tensor& logits, const Tensor& so_far, const Tensor& length = {}, const Tensor& made = {});
  Tensor choose(const Tensor& processed);                              // the rest of next(): [batch]
  bool draws() const { return do_sample_; }                            // else the argmax, a function of the scores
  bool is_argmax() const { return !do_sample_ && !changes_scores(); }  // of the logits as they are
  bool needs_made() const { return made_.defined() || rules_.any(); }
  bool needs_history() const { return repetition_penalty_ != 1 || ngram_ > 0 || rules_.any(); }
  const std::optional<at::Generator>& generator() const { return generator_; }  // none: the device's own

 private:
  bool changes_scores() const { return needs_history() || made_.defined(); }
  RuledText text_of(const Tensor& so_far, const Tensor& made);
  Tensor without_repeats(const Tensor& scores, const Tensor& so_far, const Tensor& length) const;
  Tensor without_ends(const Tensor& scores, const Tensor& made);
  Tensor warp(Tensor scores) const;  // [batch, vocab] float32
  Tensor of_entropy(Tensor scores) const;
  ScoreRules rules_;
  Largest largest_;
  bool do_sample_, renormalizes_;
  double temperature_, top_p_, min_p_, typical_p_, epsilon_, eta_, top_h_, repetition_penalty_;
  int64_t calls_ = 0;  // tokens so far of a caller that passes none, for the rules
  int64_t top_k_, ngram_, least_;
  std::vector<int64_t> ends_;
  Tensor is_end_;  // [vocab] bool
  Tensor made_;    // [1] int64: tokens so far, on the device, so that a captured step counts; where ends may come early
  std::optional<at::Generator> generator_;
};

}  // namespace hotswap
