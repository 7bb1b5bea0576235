#include "hotswap/layers/linked.h"

#include <ATen/core/grad_mode.h>
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

// What backward needs beside tensors; kept by the graph.
struct Call : torch::CustomClassHolder {
  Weight weight;
  double scale = 1, p = 0;
  uint64_t seed = 0;
  at::ScalarType wide = at::kFloat;
  bool has_bias = false, adapts = false;

  // In the wider dtype and with the mask, [rows, in].
  Tensor read(const Tensor& x) const {
    const Tensor rows = flat(x).to(wide);
    return p > 0 ? at::mul(rows, dropout_mask(rows, p, seed)) : rows;
  }
};

struct FrozenFunction : torch::autograd::Function<FrozenFunction> {
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Call>& call, const Tensor& x,
                               const std::optional<Tensor>& bias, const std::optional<Tensor>& a,
                               const std::optional<Tensor>& b) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    Tensor y = at::linear(x, call->weight.dequantised(x.scalar_type()), bias);
    if (!call->adapts) {
      ctx->saved_data["shape"] = x.sizes().vec();
      return {y, x};
    }
    const Tensor low = at::mm(call->read(x), a->to(call->wide).t());  // [rows, rank]
    ctx->save_for_backward({x, *a, *b, low});
    y = at::addmm(flat(y).to(call->wide), low, b->to(call->wide).t(), 1, call->scale)
            .to(y.scalar_type())
            .view(y.sizes());
    return {y, x};
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
    if (needs_dx) add_product(dx, dy, call->weight.dequantised(dy.scalar_type()), shape);
    if (call->has_bias && ctx->needs_input_grad(1)) dbias = dy.sum(0);
    if (!call->adapts) return {Tensor(), dx, dbias, da, db};

    const Tensor &a = saved[1], &b = saved[2], &low = saved[3], wide_dy = dy.to(call->wide);
    const Tensor dlow = at::mm(wide_dy, b.to(call->wide)).mul_(call->scale);  // [rows, rank]
    db = at::mm(wide_dy.t(), low).mul_(call->scale).to(b.scalar_type());
    da = at::mm(dlow.t(), call->read(saved[0])).to(a.scalar_type());
    if (needs_dx) {
      const Tensor wide_a = a.to(call->wide);
      if (call->p == 0 && dx.scalar_type() == call->wide) {
        add_product(dx, dlow, wide_a, shape);
      } else {
        Tensor change = at::mm(dlow, wide_a);
        if (call->p > 0) change.mul_(dropout_mask(change, call->p, call->seed));
        dx.view({-1, shape.back()}).add_(change.to(dx.scalar_type()));
      }
    }
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
    call->wide = c10::promoteTypes(x.scalar_type(), adapter->a.scalar_type());
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
