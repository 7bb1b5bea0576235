#include "hotswap/layers/linear.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

namespace hotswap {

Tensor stock::linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return at::linear(x, weight, bias);
}

Linear::Linear(int64_t in, int64_t out, bool with_bias, Init weight_init, Init bias_init) : weight(own_weight_) {
  own("weight", weight, {out, in}, std::move(weight_init));
  if (with_bias) own("bias", bias, {out}, std::move(bias_init));
}

Linear::Linear(Tensor& tied) : weight(tied) { share("weight", weight); }

Tensor Linear::forward(const Tensor& x) const {
  return forward_(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

Tensor Embedding::forward(const Tensor& ids) const { return at::embedding(weight, ids); }

}  // namespace hotswap
