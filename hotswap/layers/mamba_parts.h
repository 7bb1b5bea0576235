// What the mixers with a short convolution have in common.
#pragma once

#include <string>

#include "hotswap/layers/mamba.h"
#include "hotswap/layers/mamba_options.h"
#include "hotswap/layers/token_mixer.h"

namespace hotswap {

// The short convolution, with its two slots: over a sequence, and for one token of a cache.
class CausalConv1d : public Module {
 public:
  CausalConv1d(int64_t channels, int64_t width, bool with_bias, bool is_special,
               std::string activation = "silu");  // as CausalConv1dForward has it
  // x: [batch, channels, time] -> the same. Where there is a cache, `state` [batch, channels, width] is moved on.
  Tensor forward(const Tensor& x, const ForwardContext& context, const Tensor& state) const;
  Tensor weight;  // [channels, 1, width]
  Tensor bias;    // [channels], or undefined

 private:
  std::string activation_;
  Slot<CausalConv1dForward> forward_{this, "causal_conv1d_fn", "causal_conv1d/1", stock::causal_conv1d};
  Slot<CausalConv1dUpdateForward> update_{this, "causal_conv1d_update", "causal_conv1d_update/1",
                                          stock::causal_conv1d_update};
};

// Padding is 0 where a recurrence looks. x: [batch, time, dim]
Tensor without_padding(const Tensor& x, const ForwardContext& context);
// One token behind others that the cache has.
bool is_step(const Tensor& x, const ForwardContext& context);
// The state that a sequence begins with: none in an empty cache.
OptionalTensor initial_state(const ForwardContext& context, const Tensor& state);

inline OptionalTensor if_defined(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

// Fresh weights: log(1), log(2), ... along the last dimension; what softplus makes a time step of.
Init log_of_counts();
Init inverse_softplus_of(const TimeStepInit& time_step);
// Of a projection out of the mixer.
Init output_init(const TimeStepInit& time_step, int64_t in);

}  // namespace hotswap
