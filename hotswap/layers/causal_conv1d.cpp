// causal_conv1d/1 and causal_conv1d_update/1 in plain ATen.
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/mamba.h"
#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

Tensor activated(const Tensor& y, const std::string& activation) {
  if (activation == "none") return y;
  if (activation == "silu") return at::silu(y);
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "silu or none as the convolution's activation",
               .got = cat('"', activation, '"'),
               .next = "take none, and apply the activation to the convolution's result"});
}

// No padding: [batch, channels, time + width - 1] -> [batch, channels, time]
Tensor convolved(const Tensor& seen, const Tensor& weight, const OptionalTensor& bias) {
  const std::vector<int64_t> stride = {1}, padding = {0}, dilation = {1};
  return at::conv1d(seen.to(weight.scalar_type()), weight.unsqueeze(1), bias, stride, padding, dilation,
                    /*groups=*/weight.size(0));
}

// A tap counts where its token is of the same sequence. Sums are float32 and rounded once, as a convolution's are.
Tensor convolved_within(const Tensor& seen, const Tensor& weight, const OptionalTensor& bias, const Tensor& seq_idx) {
  const int64_t width = weight.size(1), time = seq_idx.size(1);
  // What is before the first token is of its sequence.
  const Tensor sequence = at::cat({seq_idx.narrow(1, 0, 1).expand({-1, width - 1}), seq_idx}, 1);
  const Tensor own = sequence.narrow(1, width - 1, time);
  Tensor y;
  for (int64_t k = 0; k < width; ++k) {
    const Tensor same = sequence.narrow(1, k, time).eq(own).unsqueeze(1);  // [batch, 1, time]
    const Tensor tap = at::mul(at::mul(wide(seen.narrow(2, k, time)), wide(weight.select(1, k)).unsqueeze(1)), same);
    y = y.defined() ? at::add(y, tap) : tap;
  }
  if (bias) y = at::add(y, wide(*bias).unsqueeze(1));
  return y.to(weight.scalar_type());
}

}  // namespace

Tensor stock::causal_conv1d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                            const OptionalTensor& initial_state, const OptionalTensor& seq_idx,
                            const std::string& activation) {
  const int64_t before = weight.size(1) - 1;
  const Tensor seen = initial_state ? at::cat({initial_state->to(x.scalar_type()), x}, 2)
                                    : at::constant_pad_nd(x, {before, 0});  // [batch, channels, before + time]
  const Tensor y = seq_idx ? convolved_within(seen, weight, bias, *seq_idx) : convolved(seen, weight, bias);
  return activated(y, activation).to(x.scalar_type());
}

Tensor stock::causal_conv1d_update(const Tensor& x, const Tensor& state, const Tensor& weight,
                                   const OptionalTensor& bias, const std::string& activation) {
  const int64_t kept = state.size(2), time = x.size(2), before = weight.size(1) - 1;
  const Tensor seen = at::cat({state, x}, 2);
  state.copy_(seen.narrow(2, time, kept));
  const Tensor y = convolved(seen.narrow(2, kept - before, before + time), weight, bias);
  return activated(y, activation).to(x.scalar_type());
}

}  // namespace hotswap
