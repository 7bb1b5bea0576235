// From the logits of one position to the next token, in the order of transformers' processors: repetition penalty,
// runs of tokens that would come again, ends that come too early, temperature, top-k, top-p, min-p, then a draw. On the
// logits' device, and never waits for it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>

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
  bool draws() const { return do_sample_; }                            // else the argmax, a function of the scores
  bool is_argmax() const { return !do_sample_ && !changes_scores(); }  // of the logits as they are
  bool needs_made() const { return made_.defined(); }
  bool needs_history() const { return repetition_penalty_ != 1 || ngram_ > 0; }
  const std::optional<at::Generator>& generator() const { return generator_; }  // none: the device's own

 private:
  bool changes_scores() const { return needs_history() || made_.defined(); }
  Tensor penalised(const Tensor& scores, const Tensor& so_far) const;
  Tensor without_repeats(const Tensor& scores, const Tensor& so_far, const Tensor& length) const;
  Tensor without_ends(const Tensor& scores, const Tensor& made);
  Tensor warp(Tensor scores) const;  // [batch, vocab] float32
  Largest largest_;
  bool do_sample_;
  double temperature_, top_p_, min_p_, repetition_penalty_;
  int64_t top_k_, ngram_, least_;
  std::vector<int64_t> ends_;
  Tensor is_end_;  // [vocab] bool
  Tensor made_;    // [1] int64: tokens so far, on the device, so that a captured step counts; where ends may come early
  std::optional<at::Generator> generator_;
};

}  // namespace hotswap
