#include "hotswap/layers/linked.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linked : torch::autograd::Function<Linked> {
  // The projection, and x for the next one.
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const std::optional<Tensor>& bias) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, weight});
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
    Tensor dx, dweight, dbias;
    if (!handed_on.defined()) {
      dx = at::mm(dy, weight).view(x.sizes());
    } else {  // made by the next projection's backward, for nobody else
      dx = handed_on;
      dx.view({-1, x.size(-1)}).addmm_(dy, weight);
    }
    if (ctx->needs_input_grad(1)) dweight = at::mm(dy.t(), flat(x));
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) dbias = dy.sum(0);
    return {dx, dweight, dbias};
  }
};

}  // namespace

Tensor LinkedProjections::operator()(const Linear& projection, const Tensor& x) {
  const bool trains =
      on_ && at::GradMode::is_enabled() && x.requires_grad() && projection.trains_by_torch(x.scalar_type());
  if (!trains) return projection.forward(x);
  const std::optional<Tensor> bias = projection.bias.defined() ? std::optional(projection.bias) : std::nullopt;
  variable_list made = Linked::apply(handed_on_.defined() ? handed_on_ : x, projection.data(), bias);
  handed_on_ = made[1];
  return made[0];
}

}  // namespace hotswap
