// Cross-entropy from logits and from hidden states: their ops in a slot, with autograd.
#include <ATen/ScalarOps.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/graph_task.h>

#include "hotswap/kernelize/bind/bind_impl.h"

namespace hotswap {
namespace {

using namespace binding;  // NOLINT(google-build-using-namespace)
using torch::autograd::Function;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// cross_entropy/1

using CrossEntropyOps =
    Ops<Tensor(const Tensor&, const Tensor&, int64_t, double, double, double, String),
        Two(const Tensor&, const Tensor&, int64_t, double, double, double, String),
        Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, double, double, double, String)>;

template <typename OpsType>
struct LossCall {
  const OpsType* ops;
  CrossEntropyOptions options;
  bool has_bias = false;
};

// The op's tensors, then the options in the contract's order.
template <typename OpType, typename... Tensors>
auto call_loss(const OpType& op, const CrossEntropyOptions& o, const Tensors&... tensors) {
  return below_autograd(op, tensors..., o.ignore_index, o.label_smoothing, o.softcap, o.z_loss, o.reduction);
}

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static Tensor forward(AutogradContext* ctx, const CrossEntropyOps* ops, const Tensor& logits, const Tensor& target,
                        const CrossEntropyOptions& options) {
    keep(ctx, LossCall<CrossEntropyOps>{ops, options});
    if (!ops->trains()) return call_loss(ops->forward, options, logits, target);
    auto [loss, lse] = call_loss(*ops->train, options, logits, target);
    ctx->save_for_backward({logits, target, lse});
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dloss) {
    const auto call = kept<LossCall<CrossEntropyOps>>(ctx);
    check_backward(call.ops->layer);
    const auto saved = ctx->get_saved_variables();  // logits, target, lse
    return {{}, call_loss(*call.ops->backward, call.options, dense(dloss[0]), saved[0], saved[1], saved[2]), {}, {}};
  }
};

// linear_cross_entropy/1

using LinearCrossEntropyOps = Ops<Tensor(const Tensor&, const Tensor&, const OptTensor&, const Tensor&, int64_t, double,
                                         double, double, String, int64_t),
                                  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
                                      const Tensor&, const Tensor&, const OptTensor&, const Tensor&, int64_t, double,
                                      double, double, String, bool, int64_t),
                                  Three(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, const Tensor&,
                                        const Tensor&, int64_t, double, double, double, String, bool, int64_t)>;

template <typename OpType, typename... Tensors>
auto call_linear_loss(const OpType& op, const CrossEntropyOptions& o, const Tensors&... tensors) {
  return below_autograd(op, tensors..., o.ignore_index, o.label_smoothing, o.softcap, o.z_loss, o.reduction,
                        o.float32_dweight, o.chunk_bytes);
}
Tensor linear_loss(const LinearCrossEntropyOps& ops, const CrossEntropyOptions& o, const Tensor& hidden,
                   const Tensor& weight, const OptTensor& bias, const Tensor& target) {
  return below_autograd(ops.forward, hidden, weight, bias, target, o.ignore_index, o.label_smoothing, o.softcap,
                        o.z_loss, o.reduction, o.chunk_bytes);
}

// The forward op has made the gradients for dloss = 1. The product is rounded once: dloss itself in sixteen bits would
// be wrong by the same share for every number, or infinite where a loss scaler's is meant. So the factor is a plain
// number on the CPU, and on a GPU, which reading it would make wait, a tensor of one dimension, which takes part in
// type promotion.
Tensor scaled(const Tensor& gradient, const Tensor& dloss) {
  if (!gradient.defined() || (dloss.is_cpu() && dloss.item<double>() == 1)) return gradient;
  const Tensor factor = dloss.is_cpu() ? at::native::wrapped_scalar_tensor(dloss.item()) : dloss.reshape({1});
  // In place unless this graph may be walked again: the gradient of a 49k vocabulary is a hundred megabytes.
  Tensor out = torch::autograd::get_current_graph_task_keep_graph() ? at::empty_like(gradient) : gradient;
  return at::mul_out(out, gradient, factor);
}

struct LinearCrossEntropyFunction : Function<LinearCrossEntropyFunction> {
  static Tensor forward(AutogradContext* ctx, const LinearCrossEntropyOps* ops, const Tensor& hidden,
                        const Tensor& weight, const OptTensor& bias, const Tensor& target,
                        const CrossEntropyOptions& options) {
    keep(ctx, LossCall<LinearCrossEntropyOps>{ops, options, bias.has_value()});
    if (!ops->trains()) return linear_loss(*ops, options, hidden, weight, bias, target);
    auto [loss, lse, dhidden, dweight, dbias] = call_linear_loss(*ops->train, options, hidden, weight, bias, target);
    if (options.reduction == "none") {
      ctx->save_for_backward({hidden, weight, bias.value_or(Tensor()), target, lse});
    } else {
      ctx->save_for_backward({dhidden, dweight, bias ? dbias : Tensor()});
    }
    return loss;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dloss) {
    const auto call = kept<LossCall<LinearCrossEntropyOps>>(ctx);
    check_backward(call.ops->layer);
    const auto saved = ctx->get_saved_variables();
    if (call.options.reduction != "none") {
      return {{}, scaled(saved[0], dloss[0]), scaled(saved[1], dloss[0]), scaled(saved[2], dloss[0]), {}, {}};
    }
    const OptTensor bias = call.has_bias ? OptTensor(saved[2]) : std::nullopt;
    auto [dhidden, dweight, dbias] = call_linear_loss(*call.ops->backward, call.options, dense(dloss[0]), saved[0],
                                                      saved[1], bias, saved[3], saved[4]);
    return {{}, dhidden, dweight, call.has_bias ? dbias : Tensor(), {}, {}};
  }
};

}  // namespace

void bind_cross_entropy(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<CrossEntropyForward>(slot,
                                 [ops = ops_of<CrossEntropyOps>(layer)](const Tensor& logits, const Tensor& target,
                                                                        const CrossEntropyOptions& options) {
                                   if (wants_grad(logits))
                                     return CrossEntropyFunction::apply(ops, logits, target, options);
                                   return call_loss(ops->forward, options, logits, target);
                                 });
}

void bind_linear_cross_entropy(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<LinearCrossEntropyForward>(slot, [ops = ops_of<LinearCrossEntropyOps>(layer)](
                                                 const Tensor& hidden, const Tensor& weight, const OptTensor& bias,
                                                 const Tensor& target, const CrossEntropyOptions& options) {
    if (wants_grad(hidden, weight, bias)) {
      return LinearCrossEntropyFunction::apply(ops, hidden, weight, given(bias), target, options);
    }
    return linear_loss(*ops, options, hidden, weight, given(bias), target);
  });
}

}  // namespace hotswap
