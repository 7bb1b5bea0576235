#include "hotswap/layers/mamba_parts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>

#include <cmath>
#include <utility>

namespace hotswap {

// torch's own for a convolution, which has one input channel an output.
CausalConv1d::CausalConv1d(int64_t channels, int64_t width, bool with_bias, bool is_special, std::string activation)
    : activation_(std::move(activation)) {
  own("weight", weight, {channels, 1, width},
      is_special ? Init::uniform(1 / std::sqrt(static_cast<double>(width))) : Init::normal());
  if (with_bias) own("bias", bias, {channels}, Init::constant(0));
}

Tensor CausalConv1d::forward(const Tensor& x, const ForwardContext& context, const Tensor& state) const {
  const Tensor taps = weight.squeeze(1);
  if (is_step(x.transpose(1, 2), context)) return update_(x, state, taps, if_defined(bias), activation_);
  OptionalTensor before = initial_state(context, state);
  const int64_t width = weight.size(2), time = x.size(2);
  if (before) before = before->narrow(2, 1, width - 1);
  Tensor y = forward_(x, taps, if_defined(bias), before, if_defined(context.seq_idx), activation_);
  if (state.defined()) {
    // The last `width` of all tokens: of a long sequence its own, else those before it move up.
    if (time >= width) {
      state.copy_(x.narrow(2, time - width, width));
    } else {
      state.copy_(at::cat({state.narrow(2, time, width - time), x}, 2));
    }
  }
  return y;
}

Tensor without_padding(const Tensor& x, const ForwardContext& context) {
  return context.real.defined() ? at::mul(x, context.real.unsqueeze(-1)) : x;
}

bool is_step(const Tensor& x, const ForwardContext& context) {
  return context.memory != nullptr && x.size(1) == 1 && context.attention.sequence().start > 0;
}

OptionalTensor initial_state(const ForwardContext& context, const Tensor& state) {
  return state.defined() && context.attention.sequence().start > 0 ? OptionalTensor(state) : std::nullopt;
}

Init log_of_counts() {
  return Init::drawn([](Tensor& fresh, const at::Generator&) {
    fresh.copy_(at::log(at::arange(1, fresh.size(-1) + 1, fresh.options())));
  });
}

Init inverse_softplus_of(const TimeStepInit& t) {
  return Init::drawn([t](Tensor& fresh, const at::Generator& generator) {
    const Tensor dt = at::exp(fresh.uniform_(std::log(t.min), std::log(t.max), generator)).clamp_min(t.floor);
    fresh.copy_(dt.add(at::log(at::neg(at::expm1(at::neg(dt))))));
  });
}

Init output_init(const TimeStepInit& t, int64_t in) {
  if (!t.is_special && !t.special_output) return Init::normal();
  return Init::uniform(1 / std::sqrt(static_cast<double>(in * t.rescaled_by)));
}

}  // namespace hotswap
