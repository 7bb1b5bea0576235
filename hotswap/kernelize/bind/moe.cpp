// packed_moe/1 is the forward of moe/1 by weights in the formats that a package lists.
//
// moe/1. What the options mean is in layers/experts.h; beside that a package keeps to this:
//
//   - order [tokens * k] int32: which token and choice (t * k + j) fills each row; rows by expert, within one by
//     t * k + j.
//   - slots [tokens * k] int32: the other way round, -1 where a choice is of no expert.
//   - offsets [experts + 1] int32: where each expert's rows begin, and their end.
//   - h [tokens * k, n]: up(x) in x's dtype before the activation, n in the weights' own order; with scale_input
//     neither scaled nor with its bias. Rows past the last offset hold nothing.
//   - weight_grads false: dw_up, db_up, dw_down and db_down are [0], as those of biases are that were not given.
//   - backward_inplace writes over h.
#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/bind/regular.h"
#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/layers/experts.h"

namespace hotswap::binding {
namespace {

using c10::OperatorHandle;

// A layer's ops, looked up once.
struct ExpertsOps {
  explicit ExpertsOps(const LayerOps& of)
      : layer(of),
        forward(*find("forward")),
        train(find("forward_train")),
        backward(find("backward")),
        inplace(find("backward_inplace")) {}
  std::optional<OperatorHandle> find(const char* role) const {
    const std::string name = layer.op(role);
    if (name.empty()) return std::nullopt;
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  }
  const LayerOps& layer;
  OperatorHandle forward;
  std::optional<OperatorHandle> train, backward, inplace;
};

Values arguments(const Tensor& x, const Routing& routing, const ExpertWeights& w, const ExpertsOptions& o) {
  Values stack = {x};
  push(stack, routing);
  push(stack, w);
  push(stack, o);
  return stack;
}

void call_experts(const OperatorHandle& op, Values& stack) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(&stack);
}

// h is the graph's own: no caller has it, so only a second walk through the graph would read it again.
bool may_overwrite_activation(const Tensor& h) {
  return !torch::autograd::get_current_graph_task_keep_graph() && h.storage().use_count() == 1;
}

// Of x, index, weights, up, its bias, down, its bias.
Tensors experts_backward(const ExpertsOps& ops, const ExpertsOptions& options, const BackwardCall& call) {
  check_backward(ops.layer);
  const std::vector<bool>& needs = call.needs;
  const bool weight_grads = needs[3] || needs[4] || needs[5] || needs[6];
  Values stack = {dense(call.gradients[0])};
  for (const Tensor& tensor : call.saved) stack.push_back(optional(tensor));
  push(stack, options);
  stack.emplace_back(weight_grads);
  const bool over = ops.inplace && may_overwrite_activation(call.saved[7]);
  call_experts(over ? *ops.inplace : *ops.backward, stack);
  const auto gradient = [&](size_t result, size_t input) { return needs[input] ? stack[result].toTensor() : Tensor(); };
  return {gradient(0, 0), {}, gradient(1, 2), gradient(2, 3), gradient(3, 4), gradient(4, 5), gradient(5, 6)};
}

Tensor train_experts(const ExpertsOps* ops, const Tensor& x, const Routing& routing, const ExpertWeights& w,
                     const ExpertsOptions& options) {
  const Tensors inputs = {x, routing.index, routing.weights, w.up, w.up_bias, w.down, w.down_bias};
  const auto forward = [&]() -> ForwardResult {
    Values stack = arguments(x, routing, w, options);
    const bool trains = ops->layer.trains();
    call_experts(trains ? *ops->train : ops->forward, stack);
    ForwardResult result{.outputs = {stack[0].toTensor()}};
    if (trains) {
      result.saved = inputs;
      for (size_t i = 1; i < stack.size(); ++i)
        result.saved.push_back(stack[i].toTensor());  // h, order, slots, offsets
    }
    return result;
  };
  return differentiable(inputs, forward,
                        [ops, options](BackwardCall& call) { return experts_backward(*ops, options, call); })[0];
}

void bind_experts(SlotBase& slot, const LayerOps& layer) {
  const auto* ops = ops_of<ExpertsOps>(layer);
  bind_slot<ExpertsForward>(
      slot, [ops](const Tensor& x, const Routing& routing, const ExpertWeights& w, const ExpertsOptions& o) {
        if (wants_grad(x, routing.weights, w.up, OptTensor(w.up_bias), w.down, OptTensor(w.down_bias))) {
          return train_experts(ops, x, routing, w, o);
        }
        Values stack = arguments(x, routing, w, o);
        call_experts(ops->forward, stack);
        return stack[0].toTensor();
      });
}

}  // namespace

std::vector<Contract> moe_contracts() {
  const std::string read = "Tensor x, " + schema_of(routing_fields()) + ", " + schema_of(expert_weight_fields()) + ", ";
  const std::string options = schema_of(experts_fields());
  const std::string gradients =
      ", bool weight_grads) -> (Tensor dx, Tensor dweights, Tensor dw_up, Tensor db_up, Tensor dw_down, Tensor "
      "db_down)";
  return {{"moe/1",
           {{"forward", "(" + read + options + ") -> Tensor"},
            {"forward_train",
             "(" + read + options + ") -> (Tensor y, Tensor h, Tensor order, Tensor slots, Tensor offsets)"},
            {"backward",
             "(Tensor dy, " + read + "Tensor h, Tensor order, Tensor slots, Tensor offsets, " + options + gradients},
            {"backward_inplace",
             optional_role("(Tensor dy, " + read + "Tensor(a!) h, Tensor order, Tensor slots, Tensor offsets, " +
                           options + gradients)}},
           bind_experts},
          {.name = "packed_moe/1",
           .roles = {{"forward", "(Tensor x, " + schema_of(routing_fields()) + ", " + packed_experts_schema() + ", " +
                                     options + ") -> Tensor y"}},
           .bind = bind_regular<PackedExpertsForward>,
           .weights = {}}};
}

}  // namespace hotswap::binding
