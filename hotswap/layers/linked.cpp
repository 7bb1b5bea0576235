#include "hotswap/layers/linked.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"
#include "hotswap/layers/differentiable.h"

namespace hotswap {
namespace {

// The projection, and x for the next one.
Tensors linked(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const auto forward = [&] {
    // Of x only the weight's gradient needs more than the shape.
    return ForwardResult{{at::linear(x, weight, bias), x}, {weight.requires_grad() ? x : Tensor(), weight}};
  };
  const auto backward = [shape = x.sizes().vec()](const BackwardCall& call) -> Tensors {
    if (at::GradMode::is_enabled())
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "a gradient through the projections of an attention or a gated MLP",
                   .got = "a gradient of the gradient",
                   .next = "unkernelize for double backward (create_graph)"});
    const Tensor handed_on = call.gradients[1];
    if (!call.gradients[0].defined()) return {handed_on, Tensor(), Tensor()};  // nothing came of this projection
    const Tensor &x = call.saved[0], &weight = call.saved[1], dy = flat(call.gradients[0]);
    Tensor dx, dweight, dbias;
    if (!handed_on.defined()) {
      dx = at::mm(dy, weight).view(shape);
    } else {  // made by the next projection's backward, for nobody else
      dx = handed_on;
      dx.view({-1, shape.back()}).addmm_(dy, weight);
    }
    if (call.needs[1]) dweight = at::mm(dy.t(), flat(x));
    if (call.needs[2]) dbias = dy.sum(0);
    return {dx, dweight, dbias};
  };
  return differentiable({x, weight, bias.value_or(Tensor())}, forward, backward, MissingGradients::kUndefined);
}

// left right, summed up in float32 at least and in that type: a library may else add parts of a long sum in 16 bits.
Tensor wide_product(const Tensor& left, const Tensor& right) {
  const at::ScalarType wide = c10::promoteTypes(left.scalar_type(), at::kFloat);
  if (left.scalar_type() == wide) return at::mm(left, right);
  return left.is_cuda() ? at::mm(left, right, wide) : at::mm(left.to(wide), right.to(wide));
}

// What backward needs beside tensors.
struct Call {
  Weight weight;
  double scale = 1, p = 0;
  uint64_t seed = 0;
  at::ScalarType type = at::kFloat;  // that the adapter multiplies in
  bool has_bias = false, adapts = false;

  // With the mask, [rows, in].
  Tensor read(const Tensor& x) const {
    const Tensor rows = flat(x).to(type);
    return p > 0 ? at::mul(rows, dropout_mask(rows, p, seed)) : rows;
  }
  Tensor scaled(const Tensor& b) const { return b.mul(scale).to(type); }
};

// The small products come first and the base's is added to them (beta = 1): what it reads for that is hidden beneath
// its arithmetic, where a small product would read and write all of y or dx once more.
ForwardResult frozen_forward(const Call& call, const Tensor& x, const Tensor& bias, const Tensor& a, const Tensor& b) {
  const Tensor weight = call.weight.dequantised(x.scalar_type());
  if (!call.adapts) return {{at::linear(x, weight, call.has_bias ? std::optional(bias) : std::nullopt), x}, {}};
  const Tensor low = wide_product(call.read(x), a.to(call.type).t()).to(call.type);  // [rows, rank]
  const Tensor change = call.scaled(b).t();
  Tensor y = call.has_bias ? at::addmm(bias.to(call.type), low, change) : at::mm(low, change);
  y = y.to(x.scalar_type()).addmm_(flat(x), weight.t());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = y.size(1);
  // No view: what comes after may write its own gradient there.
  return {{at::_unsafe_view(y, shape), x}, {x, a, b, low}};
}

// To dx, where the next layer's backward has made one for it.
void add_product(Tensor& dx, const Tensor& left, const Tensor& right, const std::vector<int64_t>& shape) {
  if (dx.defined()) {
    dx.view({-1, shape.back()}).addmm_(left, right);
  } else {
    dx = at::mm(left, right).view(shape);
  }
}

// What comes back through the adapter.
void add_change(Tensor& dx, const Tensor& dlow, const Tensor& x, const Tensor& a, const Call& call) {
  const Tensor right = a.to(call.type);
  if (call.p == 0 && x.scalar_type() == call.type) return add_product(dx, dlow, right, x.sizes().vec());
  Tensor change = at::mm(dlow, right);
  if (call.p > 0) change.mul_(dropout_mask(change, call.p, call.seed));
  change = change.to(x.scalar_type()).view(x.sizes());
  dx = dx.defined() ? dx.add_(change) : change;
}

// Of x, the bias, a and b.
Tensors frozen_backward(const Call& call, const BackwardCall& from, const std::vector<int64_t>& shape) {
  if (at::GradMode::is_enabled()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a gradient through a layer with a frozen weight",
                 .got = "a gradient of the gradient",
                 .next = "let the weights learn for double backward (create_graph)"});
  }
  Tensor dx = from.gradients[1], dbias, da, db;
  if (!from.gradients[0].defined()) return {dx, dbias, da, db};  // nothing came of this product
  const Tensor dy = flat(from.gradients[0]);
  const bool needs_dx = from.needs[0];
  if (call.has_bias && from.needs[1]) dbias = dy.sum(0);
  if (call.adapts) {
    const Tensor &x = from.saved[0], &a = from.saved[1], &b = from.saved[2], &low = from.saved[3];
    const Tensor grad = dy.to(call.type);
    const Tensor dlow = wide_product(grad, call.scaled(b)).to(call.type);  // [rows, rank]
    db = wide_product(grad.t(), low).mul_(call.scale).to(b.scalar_type());
    da = wide_product(dlow.t(), call.read(x)).to(a.scalar_type());
    if (needs_dx) add_change(dx, dlow, x, a, call);
  }
  if (needs_dx) add_product(dx, dy, call.weight.dequantised(dy.scalar_type()), shape);
  return {dx, dbias, da, db};
}

}  // namespace

std::pair<Tensor, Tensor> frozen_product(const Tensor& x, const FrozenProduct& product) {
  Call call{.weight = product.weight};
  if (!call.weight.encoded()) call.weight.data = call.weight.data.detach();
  call.has_bias = product.bias.has_value() && product.bias->defined();
  Tensor a, b;
  if (const Adapter* adapter = product.adapter) {
    call.adapts = true;
    call.scale = adapter->scale;
    call.type = x.element_size() == 2 ? x.scalar_type() : c10::promoteTypes(x.scalar_type(), adapter->a.scalar_type());
    if (product.drops && adapter->dropout) {
      call.p = adapter->dropout->p;
      call.seed = adapter->dropout->next_seed();
    }
    a = adapter->a;
    b = adapter->b;
  }
  const Tensor bias = product.bias.value_or(Tensor());
  const Tensors made = differentiable(
      {x, bias, a, b}, [&] { return frozen_forward(call, x, bias, a, b); },
      [call, shape = x.sizes().vec()](const BackwardCall& from) { return frozen_backward(call, from, shape); },
      MissingGradients::kUndefined);
  return {made[0], made[1]};
}

Tensor LinkedProjections::operator()(const Linear& projection, const Tensor& x) {
  const bool trains =
      on_ && at::GradMode::is_enabled() && x.requires_grad() && projection.trains_by_torch(x.scalar_type());
  const std::optional<Tensor> bias = projection.bias.defined() ? std::optional(projection.bias) : std::nullopt;
  const std::optional<Adapter>& adapter = projection.adapter();
  const bool frozen = at::GradMode::is_enabled() && projection.weight.encoded() && !adapter;
  if (on_ && x.requires_grad() && (frozen || projection.adapts_in_one_node())) {
    const FrozenProduct product{projection.weight, bias, adapter ? &*adapter : nullptr, projection.training()};
    auto [y, same] = frozen_product(handed_on_.defined() ? handed_on_ : x, product);
    handed_on_ = same;
    return y;
  }
  if (!trains) return projection.forward(x);
  Tensors made = linked(handed_on_.defined() ? handed_on_ : x, projection.data(), bias);
  handed_on_ = made[1];
  return made[0];
}

}  // namespace hotswap
