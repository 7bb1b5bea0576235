#include "hotswap/models/checkpointed.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"
#include "hotswap/models/trained.h"

namespace hotswap {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// While it lives draws repeat those that began at `state`.
class DrawsAgain {
 public:
  explicit DrawsAgain(const Tensor& state) : before_(dropout_draws()) { set_dropout_draws(state); }
  ~DrawsAgain() { set_dropout_draws(before_); }
  DrawsAgain(const DrawsAgain&) = delete;
  DrawsAgain& operator=(const DrawsAgain&) = delete;

 private:
  Tensor before_;
};

Tensor in_host_memory(const Tensor& t) {
  if (!t.defined() || t.is_cpu()) return t;
  return at::empty_like(t, t.options().device(at::kCPU).pinned_memory(true)).copy_(t, /*non_blocking=*/true);
}
Tensor back_on(const Tensor& t, at::Device device) {
  return t.defined() ? t.to(device, /*non_blocking=*/true, /*copy=*/false) : t;
}

// What backward needs of the call.
struct Call : torch::CustomClassHolder {
  Block* block = nullptr;
  ForwardContext context;
  at::Device device = at::kCPU;
  Tensor x, residual;  // where they were offloaded
  Tensor draws;
  bool offload = false, has_residual = false, hands_on = false;  // the last: does the block return a residual?

  // The block's outputs, in one list: x, the residual where there is one, router logits. With gradients.
  variable_list outputs(const HiddenState& in) {
    std::vector<Tensor> router_logits;
    ForwardContext own = context;
    if (own.router_logits != nullptr) own.router_logits = &router_logits;
    const at::AutoGradMode with_gradients(true);
    const HiddenState out = block->forward(in, own);
    variable_list all{out.x};
    hands_on = out.residual.defined();
    if (hands_on) all.push_back(out.residual);
    all.insert(all.end(), router_logits.begin(), router_logits.end());
    return all;
  }
};

Tensor leaf_of(const Tensor& t, bool learns) {
  return t.defined() ? t.detach().set_requires_grad(learns && t.is_floating_point()) : t;
}

// Inputs are x, the residual and all that learns in the block, so that each has its gradient once, by this node.
struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Call>& call, const Tensor& x,
                               const std::optional<Tensor>& residual, at::TensorList /*trained*/) {
    ctx->set_materialize_grads(false);
    call->draws = dropout_draws();
    const Tensor other = residual ? *residual : Tensor();
    // In the mode of training, whose kernels may round otherwise than those of inference; its graph is dropped here.
    variable_list made =
        call->outputs({leaf_of(x, x.requires_grad()), leaf_of(other, other.defined() && other.requires_grad())});
    for (Tensor& out : made) out = out.detach();
    if (call->offload) {
      call->x = in_host_memory(x), call->residual = in_host_memory(other);
    } else {
      ctx->save_for_backward({x, other});
    }
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return made;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "a gradient through a layer whose activations are made again",
                   .got = "a gradient of the gradient",
                   .next = "disable gradient checkpointing for double backward (create_graph)"});
    }
    const auto call = c10::static_intrusive_pointer_cast<Call>(ctx->saved_data["call"].toCapsule());
    variable_list saved = call->offload ? variable_list{} : ctx->get_saved_variables();
    const Tensor x = call->offload ? back_on(call->x, call->device) : saved[0];
    const Tensor residual = call->offload ? back_on(call->residual, call->device) : saved[1];
    saved.clear();

    variable_list learning;  // what needs a gradient, and which input of this function it is
    std::vector<size_t> input_of;
    const auto add = [&](size_t input, const Tensor& t) {
      if (t.defined() && t.requires_grad()) learning.push_back(t), input_of.push_back(input);
    };
    const Tensor again = leaf_of(x, ctx->needs_input_grad(0));
    const Tensor other = leaf_of(residual, call->has_residual && ctx->needs_input_grad(1));
    add(1, again);  // 0 is the call
    add(2, other);
    size_t inputs = 3;
    each_trained(*call->block, [&](const std::string&, Tensor& t) { add(inputs++, t); });

    const DrawsAgain same_draws(call->draws);
    const variable_list outputs = call->outputs({again, other});
    variable_list roots, of_roots;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      of_roots.push_back(gradients[i]);
    }
    variable_list result(inputs);
    if (roots.empty() || learning.empty()) return result;
    const variable_list made = torch::autograd::grad(roots, learning, of_roots, /*retain_graph=*/false,
                                                     /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < made.size(); ++i) result[input_of[i]] = made[i];
    return result;
  }
};

}  // namespace

HiddenState checkpointed(Block& block, const HiddenState& in, const ForwardContext& context, bool offload) {
  const auto call = c10::make_intrusive<Call>();
  call->block = &block;
  call->context = context;
  call->device = in.x.device();
  call->offload = offload;
  call->has_residual = in.residual.defined();
  variable_list trained;
  each_trained(block, [&](const std::string&, Tensor& t) { trained.push_back(t); });
  const std::optional<Tensor> residual = call->has_residual ? std::optional(in.residual) : std::nullopt;
  const variable_list made = CheckpointFunction::apply(call, in.x, residual, at::TensorList(trained));
  const size_t states = call->hands_on ? 2 : 1;
  if (context.router_logits != nullptr) {
    context.router_logits->insert(context.router_logits->end(), made.begin() + static_cast<int64_t>(states),
                                  made.end());
  }
  return {made[0], call->hands_on ? made[1] : Tensor()};
}

}  // namespace hotswap
