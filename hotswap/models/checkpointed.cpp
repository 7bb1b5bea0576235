#include "hotswap/models/checkpointed.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"
#include "hotswap/layers/differentiable.h"
#include "hotswap/models/trained.h"

namespace hotswap {
namespace {

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
struct Call {
  Block& block;
  ForwardContext context;
  at::Device device;
  bool offload;
  Tensor x = {}, residual = {};  // where they were offloaded
  Tensor draws = {};
  bool hands_on = false;  // does the block return a residual?

  // The block's outputs, in one list: x, the residual where there is one, router logits. With gradients.
  Tensors outputs(const HiddenState& in) {
    std::vector<Tensor> router_logits;
    ForwardContext own = context;
    if (own.router_logits != nullptr) own.router_logits = &router_logits;
    const at::AutoGradMode with_gradients(true);
    const HiddenState out = block.forward(in, own);
    Tensors all{out.x};
    hands_on = out.residual.defined();
    if (hands_on) all.push_back(out.residual);
    all.insert(all.end(), router_logits.begin(), router_logits.end());
    return all;
  }
};

Tensor leaf_of(const Tensor& t, bool needs) {
  return t.defined() ? t.detach().set_requires_grad(needs && t.is_floating_point()) : t;
}

bool learns(const Tensor& t) { return t.defined() && t.requires_grad(); }

ForwardResult forward_without_graph(Call& call, const HiddenState& in) {
  call.draws = dropout_draws();
  // In the mode of training, whose kernels may round otherwise than those of inference; its graph is dropped here.
  ForwardResult result{.outputs =
                           call.outputs({leaf_of(in.x, learns(in.x)), leaf_of(in.residual, learns(in.residual))})};
  for (Tensor& out : result.outputs) out = out.detach();
  if (call.offload) {
    call.x = in_host_memory(in.x), call.residual = in_host_memory(in.residual);
  } else {
    result.saved = {in.x, in.residual};
  }
  return result;
}

Tensors backward_by_forward(Call& call, BackwardCall& from) {
  if (at::GradMode::is_enabled()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a gradient through a layer whose activations are made again",
                 .got = "a gradient of the gradient",
                 .next = "disable gradient checkpointing for double backward (create_graph)"});
  }
  const Tensor x = call.offload ? back_on(call.x, call.device) : from.saved[0];
  const Tensor residual = call.offload ? back_on(call.residual, call.device) : from.saved[1];
  from.saved.clear();

  Tensors learning;  // what needs a gradient, and which input of the node it is
  std::vector<size_t> input_of;
  const auto add = [&](size_t input, const Tensor& t) {
    if (learns(t)) learning.push_back(t), input_of.push_back(input);
  };
  const Tensor again = leaf_of(x, from.needs[0]), other = leaf_of(residual, from.needs[1]);
  add(0, again);
  add(1, other);
  size_t inputs = 2;
  each_trained(call.block, [&](const std::string&, Tensor& t) { add(inputs++, t); });

  const DrawsAgain same_draws(call.draws);
  const Tensors outputs = call.outputs({again, other});
  Tensors roots, of_roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!from.gradients[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    of_roots.push_back(from.gradients[i]);
  }
  Tensors result(inputs);
  if (roots.empty() || learning.empty()) return result;
  const Tensors made = torch::autograd::grad(roots, learning, of_roots, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < made.size(); ++i) result[input_of[i]] = made[i];
  return result;
}

}  // namespace

HiddenState checkpointed(Block& block, const HiddenState& in, const ForwardContext& context, bool offload) {
  const auto call =
      std::make_shared<Call>(Call{.block = block, .context = context, .device = in.x.device(), .offload = offload});
  // x, the residual and all that learns in the block, so that each has its gradient once, by this node.
  Tensors inputs = {in.x, in.residual};
  each_trained(block, [&](const std::string&, Tensor& t) { inputs.push_back(t); });
  const Tensors made = differentiable(
      inputs, [&] { return forward_without_graph(*call, in); },
      [call](BackwardCall& from) { return backward_by_forward(*call, from); }, MissingGradients::kUndefined);
  const size_t states = call->hands_on ? 2 : 1;
  if (context.router_logits != nullptr) {
    context.router_logits->insert(context.router_logits->end(), made.begin() + static_cast<int64_t>(states),
                                  made.end());
  }
  return {made[0], call->hands_on ? made[1] : Tensor()};
}

}  // namespace hotswap
