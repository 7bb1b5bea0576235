#include "hotswap/layers/linked.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"

namespace hotswap {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linked : torch::autograd::Function<Linked> {
  // The projection, and x for the next one.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const std::optional<Tensor>& bias) {
    ctx->set_materialize_grads(false);
    // Of x only the weight's gradient needs more than the shape.
    ctx->save_for_backward({weight.requires_grad() ? x : Tensor(), weight});
    ctx->saved_data["shape"] = x.sizes().vec();
    ctx->saved_data["bias"] = bias.has_value();
    return {at::linear(x, weight, bias), x};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "a gradient through the projections of an attention or a gated MLP",
                   .got = "a gradient of the gradient",
                   .next = "unkernelize for double backward (create_graph)"});
    const Tensor handed_on = gradients[1];
    if (!gradients[0].defined()) return {handed_on, Tensor(), Tensor()};  // nothing came of this projection
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], dy = flat(gradients[0]);
    const std::vector<int64_t> shape = ctx->saved_data["shape"].toIntVector();
    Tensor dx, dweight, dbias;
    if (!handed_on.defined()) {
      dx = at::mm(dy, weight).view(shape);
    } else {  // made by the next projection's backward, for nobody else
      dx = handed_on;
      dx.view({-1, shape.back()}).addmm_(dy, weight);
    }
    if (ctx->needs_input_grad(1)) dweight = at::mm(dy.t(), flat(x));
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) dbias = dy.sum(0);
    return {dx, dweight, dbias};
  }
};

// left right, summed up in float32 at least and in that type: a library may else add parts of a long sum in 16 bits.
Tensor wide_product(const Tensor& left, const Tensor& right) {
  const at::ScalarType wide = c10::promoteTypes(left.scalar_type(), at::kFloat);
  if (left.scalar_type() == wide) return at::mm(left, right);
  return left.is_cuda() ? at::mm(left, right, wide) : at::mm(left.to(wide), right.to(wide));
}

// What backward needs beside tensors; kept by the graph.
struct Call : torch::CustomClassHolder {
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
struct FrozenFunction : torch::autograd::Function<FrozenFunction> {
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Call>& call, const Tensor& x,
                               const std::optional<Tensor>& bias, const std::optional<Tensor>& a,
                               const std::optional<Tensor>& b) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    const Tensor weight = call->weight.dequantised(x.scalar_type());
    if (!call->adapts) {
      ctx->saved_data["shape"] = x.sizes().vec();
      return {at::linear(x, weight, bias), x};
    }
    const Tensor low = wide_product(call->read(x), a->to(call->type).t()).to(call->type);  // [rows, rank]
    ctx->save_for_backward({x, *a, *b, low});
    const Tensor change = call->scaled(*b).t();
    Tensor y = call->has_bias ? at::addmm(bias->to(call->type), low, change) : at::mm(low, change);
    y = y.to(x.scalar_type()).addmm_(flat(x), weight.t());
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = y.size(1);
    return {at::_unsafe_view(y, shape), x};  // no view: what comes after may write its own gradient there
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "a gradient through a layer with a frozen weight",
                   .got = "a gradient of the gradient",
                   .next = "let the weights learn for double backward (create_graph)"});
    }
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data["call"].toCapsule());
    Tensor dx = gradients[1], dbias, da, db;
    if (!gradients[0].defined()) return {Tensor(), dx, dbias, da, db};  // nothing came of this product
    const Tensor dy = flat(gradients[0]);
    const bool needs_dx = ctx->needs_input_grad(0);
    const variable_list saved = call->adapts ? ctx->get_saved_variables() : variable_list{};
    const std::vector<int64_t> shape = call->adapts ? saved[0].sizes().vec() : ctx->saved_data["shape"].toIntVector();
    if (call->has_bias && ctx->needs_input_grad(1)) dbias = dy.sum(0);
    if (call->adapts) {
      const Tensor &a = saved[1], &b = saved[2], &low = saved[3], grad = dy.to(call->type);
      const Tensor dlow = wide_product(grad, call->scaled(b)).to(call->type);  // [rows, rank]
      db = wide_product(grad.t(), low).mul_(call->scale).to(b.scalar_type());
      da = wide_product(dlow.t(), call->read(saved[0])).to(a.scalar_type());
      if (needs_dx) add_change(dx, dlow, saved[0], a, *call);
    }
    if (needs_dx) add_product(dx, dy, call->weight.dequantised(dy.scalar_type()), shape);
    return {Tensor(), dx, dbias, da, db};
  }

 private:
  // To dx, where the next layer's backward has made one for it.
  static void add_product(Tensor& dx, const Tensor& left, const Tensor& right, const std::vector<int64_t>& shape) {
    if (dx.defined()) {
      dx.view({-1, shape.back()}).addmm_(left, right);
    } else {
      dx = at::mm(left, right).view(shape);
    }
  }

  // What comes back through the adapter.
  static void add_change(Tensor& dx, const Tensor& dlow, const Tensor& x, const Tensor& a, const Call& call) {
    const Tensor right = a.to(call.type);
    if (call.p == 0 && x.scalar_type() == call.type) return add_product(dx, dlow, right, x.sizes().vec());
    Tensor change = at::mm(dlow, right);
    if (call.p > 0) change.mul_(dropout_mask(change, call.p, call.seed));
    change = change.to(x.scalar_type()).view(x.sizes());
    dx = dx.defined() ? dx.add_(change) : change;
  }
};

}  // namespace

std::pair<Tensor, Tensor> frozen_product(const Tensor& x, const FrozenProduct& product) {
  const auto call = c10::make_intrusive<Call>();
  call->weight = product.weight;
  if (!call->weight.encoded()) call->weight.data = call->weight.data.detach();
  call->has_bias = product.bias.has_value() && product.bias->defined();
  std::optional<Tensor> a, b;
  if (const Adapter* adapter = product.adapter) {
    call->adapts = true;
    call->scale = adapter->scale;
    call->type = x.element_size() == 2 ? x.scalar_type() : c10::promoteTypes(x.scalar_type(), adapter->a.scalar_type());
    if (product.drops && adapter->dropout) {
      call->p = adapter->dropout->p;
      call->seed = adapter->dropout->next_seed();
    }
    a = adapter->a;
    b = adapter->b;
  }
  const variable_list made = FrozenFunction::apply(call, x, product.bias, a, b);
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
  variable_list made = Linked::apply(handed_on_.defined() ? handed_on_ : x, projection.data(), bias);
  handed_on_ = made[1];
  return made[0];
}

}  // namespace hotswap
