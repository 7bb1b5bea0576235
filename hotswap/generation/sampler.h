// From the logits of one position to the next token, in the order of transformers' processors: repetition penalty,
// temperature, top-k, top-p, then a draw. On the logits' device, and never waits for it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "hotswap/models/generation_config.h"

namespace hotswap {

using at::Tensor;

class Sampler {
 public:
  // Error on a setting that makes no sense. Reads everything but lengths and token ids.
  Sampler(const GenerationConfig& config, at::Device device);

  // logits: [batch, vocab] any floating type; so_far: [batch, time] ids, an id any number of times, read only where
  // needs_history() -> [batch]
  Tensor next(const Tensor& logits, const Tensor& so_far);
  bool needs_history() const { return repetition_penalty_ != 1; }
  const std::optional<at::Generator>& generator() const { return generator_; }  // none: the device's own

 private:
  Tensor warp(Tensor scores) const;  // [batch, vocab] float32
  bool do_sample_;
  double temperature_, top_p_, repetition_penalty_;
  int64_t top_k_;
  std::optional<at::Generator> generator_;
};

}  // namespace hotswap
