// gated_mlp/1. Beside what the names say (regular.h): with backward_recompute, which writes over all that it is given,
// dgate over gate, dup over up and what forward gave over dy, a layer's training is one node from x to down's product.
#include "hotswap/layers/mlp.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/layers/linked.h"

namespace hotswap::binding {
namespace {

using Backward = std::tuple<Tensor, Tensor>(const Tensor& dy, const Tensor& gate, const Tensor& up);

struct GatedOps : Ops<GatedForward, GatedForward, Backward> {
  explicit GatedOps(const LayerOps& layer)
      : Ops(layer), recompute(*typed_op<void(Tensor, Tensor, Tensor)>(layer, "backward_recompute")) {}
  c10::TypedOperatorHandle<void(Tensor, Tensor, Tensor)> recompute;
};

// Of x and the weights of gate, up and down.
Tensors whole_backward(const GatedOps& ops, BackwardCall& call) {
  check_backward(ops.layer);
  const Tensor x = flat(call.saved[0]), gate_weight = call.saved[1], up_weight = call.saved[2];
  const Tensor down_weight = call.saved[3], dy = flat(call.gradients[0]);
  const std::vector<int64_t> shape = call.saved[0].sizes().vec();
  const Tensors middle = {call.saved[4], call.saved[5]};
  Tensor again = at::mm(dy, down_weight).view(middle[0].sizes()), dgate, dup;  // first the gradient of the middle
  call.saved.clear();
  if (may_overwrite(middle)) {
    dgate = middle[0].detach();
    dup = middle[1].detach();
    below_autograd(ops.recompute, again, dgate, dup);
  } else {
    std::tie(dgate, dup) = below_autograd(*ops.backward, again, middle[0], middle[1]);
    again = below_autograd(*ops.train, middle[0], middle[1]);
  }
  const Tensor ddown = at::mm(dy.t(), flat(again));
  again = Tensor();
  dgate = flat(dgate);
  dup = flat(dup);
  Tensor dx;
  if (call.needs[0]) dx = at::mm(dgate, gate_weight).addmm_(dup, up_weight).view(shape);
  return {dx, at::mm(dgate.t(), x), at::mm(dup.t(), x), ddown};
}

Tensor train_whole(const GatedOps* ops, const Tensor& x, const Tensor& gate_weight, const Tensor& up_weight,
                   const Tensor& down_weight) {
  const auto forward = [&]() -> ForwardResult {
    const Tensor gate = at::linear(x, gate_weight), up = at::linear(x, up_weight);
    return {{at::linear(below_autograd(*ops->train, gate, up), down_weight)},
            {x, gate_weight, up_weight, down_weight, gate, up}};
  };
  return differentiable({x, gate_weight, up_weight, down_weight}, forward,
                        [ops](BackwardCall& call) { return whole_backward(*ops, call); })[0];
}

void bind_gated(SlotBase& slot, const LayerOps& layer) {
  bind_regular<GatedForward>(slot, layer);
  if (!layer.trains() || layer.op("backward_recompute").empty()) return;
  slot.bind_op<TrainWhole>([ops = ops_of<GatedOps>(layer)](const Tensor& x, const Tensor& gate_weight,
                                                           const Tensor& up_weight, const Tensor& down_weight) {
    return train_whole(ops, x, gate_weight, up_weight, down_weight);
  });
}

}  // namespace

std::vector<Contract> mlp_contracts() {
  return {{"gated_mlp/1",
           {{"forward", "(Tensor gate, Tensor up) -> Tensor y"},
            {"forward_train", "(Tensor gate, Tensor up) -> Tensor y"},
            {"backward", "(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)"},
            {"backward_inplace", optional_role("(Tensor dy, Tensor(a!) gate, Tensor(b!) up) -> ()")},
            {"backward_recompute", optional_role("(Tensor(a!) dy, Tensor(b!) gate, Tensor(c!) up) -> ()")}},
           bind_gated}};
}

}  // namespace hotswap::binding
