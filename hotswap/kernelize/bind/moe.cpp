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
#include <array>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/bind/regular.h"
#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/layers/experts.h"

namespace hotswap::binding {
namespace {

using c10::OperatorHandle;
using torch::autograd::Function;

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

struct ExpertsCall {
  const ExpertsOps* ops;
  ExpertsOptions options;
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

struct ExpertsFunction : Function<ExpertsFunction> {
  // Tensors stand alone: what autograd is to see may not hide in a struct.
  static Tensor forward(AutogradContext* ctx, const ExpertsCall& c, const Tensor& x, const Tensor& index,
                        const Tensor& weights, const Tensor& up, const OptTensor& up_bias, const Tensor& down,
                        const OptTensor& down_bias) {
    const ExpertWeights w{
        .up = up, .up_bias = up_bias.value_or(Tensor()), .down = down, .down_bias = down_bias.value_or(Tensor())};
    Values stack = arguments(x, {index, weights}, w, c.options);
    const bool trains = c.ops->layer.trains();
    call_experts(trains ? *c.ops->train : c.ops->forward, stack);
    keep(ctx, c);
    if (trains) {
      variable_list saved = {x, index, weights, up, w.up_bias, down, w.down_bias};
      for (size_t i = 1; i < stack.size(); ++i) saved.push_back(stack[i].toTensor());  // h, order, slots, offsets
      ctx->save_for_backward(std::move(saved));
    }
    return stack[0].toTensor();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    const auto c = kept<ExpertsCall>(ctx);
    check_backward(c.ops->layer);
    variable_list saved = ctx->get_saved_variables();
    // x, index, weights, up, its bias, down, its bias; torch counts those that were given
    std::array<bool, 7> wanted{};
    for (size_t i = 0, given = 0; i < wanted.size(); ++i) {
      if (saved[i].defined()) wanted[i] = ctx->needs_input_grad(given++);
    }
    const bool weight_grads = wanted[3] || wanted[4] || wanted[5] || wanted[6];
    Values stack = {dense(dy[0])};
    for (const Tensor& tensor : saved) stack.push_back(optional(tensor));
    push(stack, c.options);
    stack.emplace_back(weight_grads);
    const bool over = c.ops->inplace && may_overwrite(saved[7]);
    call_experts(over ? *c.ops->inplace : *c.ops->backward, stack);
    const auto gradient = [&](size_t result, size_t input) {
      return wanted[input] ? stack[result].toTensor() : Tensor();
    };
    return {{}, gradient(0, 0), {}, gradient(1, 2), gradient(2, 3), gradient(3, 4), gradient(4, 5), gradient(5, 6)};
  }

 private:
  // h is the graph's own: nobody else has seen it, so only a second walk through the graph would read it again.
  static bool may_overwrite(const Tensor& h) {
    return !torch::autograd::get_current_graph_task_keep_graph() && h.storage().use_count() == 1;
  }
};

void bind_experts(SlotBase& slot, const LayerOps& layer) {
  const auto* ops = ops_of<ExpertsOps>(layer);
  bind_slot<ExpertsForward>(
      slot, [ops](const Tensor& x, const Routing& routing, const ExpertWeights& w, const ExpertsOptions& o) {
        if (wants_grad(x, routing.weights, w.up, OptTensor(w.up_bias), w.down, OptTensor(w.down_bias))) {
          return ExpertsFunction::apply(ExpertsCall{ops, o}, x, routing.index, routing.weights, w.up, given(w.up_bias),
                                        w.down, given(w.down_bias));
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
