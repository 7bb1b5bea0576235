#include "hotswap/layers/linear.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <utility>

namespace hotswap {

Tensor stock::linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return at::linear(x, weight, bias);
}

// With more of float32 than x has, as kernels multiply: in x's own type only where that is float64.
Tensor stock::packed_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::optional<Tensor> wide_bias = bias && bias->defined() ? std::optional(bias->to(wide)) : std::nullopt;
  return at::linear(x.to(wide), dequantised(weight, x.size(-1), wide), wide_bias).to(x.scalar_type());
}

Tensor stock::largest(const Tensor& x, const Choice& to) {
  if (!to.place.defined()) return at::argmax(x, -1);
  Tensor place = to.place;
  at::argmax_out(place, x, -1);
  if (to.said.defined()) to.said.index_copy_(0, to.at, place.unsqueeze(0));
  return place;
}

Linear::Linear(int64_t in, int64_t out, bool with_bias, Init weight_init, Init bias_init)
    : in_(in), weight(own_weight_) {
  own("weight", weight, {out, in}, std::move(weight_init));
  if (with_bias) own("bias", bias, {out}, std::move(bias_init));
}

Linear::Linear(Tensor& tied) : in_(tied.size(1)), weight(tied) { share("weight", weight); }

Tensor Linear::forward(const Tensor& x) const {
  return forward_(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

Tensor Linear::largest(const Tensor& x, Choice to) const {
  if (!forward_.largest) return stock::largest(x, to);
  if (!to.place.defined()) to.place = at::empty({x.size(0)}, x.options().dtype(at::kLong));
  forward_.largest(to, x);
  return to.place;
}

void Linear::on_tensors_changed() {
  if (is_packed(weight)) {
    forward_.become("PackedLinear", "packed_linear/1", stock::packed_linear);
  } else {
    forward_.become("Linear", "linear/1", stock::linear);
  }
}

Tensor Embedding::forward(const Tensor& ids, at::ScalarType dtype) const {
  if (!is_packed(weight)) return at::embedding(weight, ids);
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(dim_);
  return dequantised(weight.index_select(0, ids.reshape({-1})), dim_, dtype).view(shape);
}

}  // namespace hotswap
