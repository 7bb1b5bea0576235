// cross_entropy/1, and linear_cross_entropy/1 with its autograd: its forward op makes the gradients.
#include "hotswap/layers/loss.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/any.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/contract/arguments.h"

namespace hotswap::binding {
namespace {

using Three = std::tuple<Tensor, Tensor, Tensor>;

using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

using LinearCrossEntropyOps =
    Ops<Tensor(const Tensor&, const Tensor&, const OptTensor&, const Tensor&, int64_t, double, double, double, String,
               int64_t, const OptTensor&, bool),
        Six(const Tensor&, const Tensor&, const OptTensor&, const Tensor&, int64_t, double, double, double, String,
            bool, int64_t, const OptTensor&, bool, bool),
        Three(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, const Tensor&, const Tensor&, int64_t,
              double, double, double, String, bool, int64_t, const OptTensor&, bool)>;

// Losses of given logits and their gradients for dloss = 1 at once.
using RowsOp = Three(const Tensor&, const Tensor&, int64_t, double, double, double, String, const OptTensor&, bool);

struct LinearLossOps : LinearCrossEntropyOps {
  explicit LinearLossOps(const LayerOps& layer) : Ops(layer), rows(typed_op<RowsOp>(layer, "rows_forward_backward")) {}
  std::optional<c10::TypedOperatorHandle<RowsOp>> rows;
};

// The op's tensors, then the options in the contract's order.
template <typename OpType, typename... Ts>
auto call_loss(const OpType& op, const CrossEntropyOptions& o, const Ts&... tensors) {
  return below_autograd(op, tensors..., o.ignore_index, o.label_smoothing, o.softcap, o.z_loss, o.reduction,
                        o.chunk_bytes, given(o.class_weight), o.token_scaling);
}
template <typename OpType, typename... Ts>
auto call_backward(const OpType& op, const CrossEntropyOptions& o, const Ts&... tensors) {
  return below_autograd(op, tensors..., o.ignore_index, o.label_smoothing, o.softcap, o.z_loss, o.reduction,
                        o.float32_dweight, o.chunk_bytes, given(o.class_weight), o.token_scaling);
}
template <typename OpType, typename... Ts>
auto call_train(const OpType& op, const CrossEntropyOptions& o, const Ts&... tensors) {
  return below_autograd(op, tensors..., o.ignore_index, o.label_smoothing, o.softcap, o.z_loss, o.reduction,
                        o.float32_dweight, o.chunk_bytes, given(o.class_weight), o.token_scaling, /*predict=*/false);
}

// forward with the options as the ops take them: their mean divides by rows, torch's by the weights of the targets,
// which is the same of weights whose mean over the targets is 1.
template <typename Forward>
Tensor with_weights(const Tensor& target, const CrossEntropyOptions& options, const Forward& forward) {
  if (!options.class_weight.defined()) return forward(options);
  if (options.class_weight.requires_grad()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a class_weight that learns nothing",
                 .got = "one that requires a gradient",
                 .next = "detach it"});
  }
  CrossEntropyOptions scaled = options;
  if (options.reduction == "mean") {
    const Tensor count = at::sum(at::ne(target, options.ignore_index));
    const Tensor total = at::sum(target_weights(options.class_weight, target, options.ignore_index));
    scaled.class_weight = at::mul(options.class_weight, at::div(count, total));
  }
  return forward(scaled);
}

// dloss, or 0 where no target counts: those gradients are 0, and dloss is infinite where a sum over none of them was
// divided by their number.
Tensor of_targets(const Tensor& dloss, const Tensor& target, int64_t ignore_index) {
  return at::where(at::any(at::ne(target, ignore_index)), dloss, 0.0);
}

// The forward op has made the gradients for dloss = 1. The product is rounded once: dloss itself in sixteen bits would
// be wrong by the same share for every number, or infinite where a loss scaler's is meant. So the factor is a plain
// number on the CPU, and on a GPU, which reading it would make wait, a tensor of one dimension, which takes part in
// type promotion.
Tensor scaled(const Tensor& gradient, const Tensor& dloss) {
  // In place unless this graph may be walked again: the gradient of a 49k vocabulary is a hundred megabytes. What is
  // walked again is not given away, whatever the factor: who gets it may write to it.
  const bool again = torch::autograd::get_current_graph_task_keep_graph();
  if (!gradient.defined() || (!again && dloss.is_cpu() && dloss.item<double>() == 1)) return gradient;
  const Tensor factor = dloss.is_cpu() ? at::native::wrapped_scalar_tensor(dloss.item()) : dloss.reshape({1});
  Tensor out = again ? at::empty_like(gradient) : gradient;
  return at::mul_out(out, gradient, factor);
}

// Of hidden, weight and bias.
Tensors loss_backward(const LinearCrossEntropyOps& ops, const CrossEntropyOptions& options, bool has_bias,
                      const BackwardCall& call) {
  check_backward(ops.layer);
  const Tensors& saved = call.saved;
  const Tensor& dloss = call.gradients[0];
  if (options.reduction != "none") {
    const Tensor factor = of_targets(dloss, saved[3], options.ignore_index);
    return {scaled(saved[0], factor), scaled(saved[1], factor), scaled(saved[2], factor)};
  }
  const OptTensor bias = has_bias ? OptTensor(saved[2]) : std::nullopt;
  auto [dhidden, dweight, dbias] =
      call_backward(*ops.backward, options, dense(dloss), saved[0], saved[1], bias, saved[3], saved[4]);
  return {dhidden, dweight, has_bias ? dbias : Tensor()};
}

Tensor train_loss(const LinearCrossEntropyOps* ops, const Tensor& hidden, const Tensor& weight, const OptTensor& bias,
                  const Tensor& target, const CrossEntropyOptions& options) {
  const auto forward = [&]() -> ForwardResult {
    if (!ops->trains()) return {{call_loss(ops->forward, options, hidden, weight, bias, target)}, {}};
    const auto made = call_train(*ops->train, options, hidden, weight, bias, target);
    const auto& [loss, lse, dhidden, dweight, dbias, predicted] = made;
    if (options.reduction == "none") return {{loss}, {hidden, weight, bias.value_or(Tensor()), target, lse}};
    return {{loss}, {dhidden, dweight, bias ? dbias : Tensor(), target}};
  };
  const auto backward = [ops, options, has_bias = bias.has_value()](BackwardCall& call) {
    return loss_backward(*ops, options, has_bias, call);
  };
  return differentiable({hidden, weight, bias.value_or(Tensor())}, forward, backward)[0];
}

// Of logits at once: enough rows for a GPU's products, little beside a layer's tensors.
int64_t usual_bytes(const Tensor& hidden) { return int64_t{hidden.is_cpu() ? 64 : 512} << 20; }

// The sum of the losses, and dhidden for dloss = 1: some rows at a time, and nothing as large as the weight.
std::pair<Tensor, Tensor> loss_in_chunks(const LinearLossOps& ops, const Tensor& hidden, const Tensor& weight,
                                         const Tensor& target, const CrossEntropyOptions& o) {
  const int64_t rows = hidden.size(0), bytes = o.chunk_bytes > 0 ? o.chunk_bytes : usual_bytes(hidden);
  const int64_t chunk = std::max<int64_t>(16, bytes / (weight.size(0) * static_cast<int64_t>(hidden.element_size())));
  const Tensor dhidden = at::empty_like(hidden);
  Tensor loss = at::zeros({}, hidden.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const Tensor logits = at::mm(hidden.narrow(0, begin, count), weight.t());
    const auto [some, lse, dlogits] =
        below_autograd(*ops.rows, logits, target.narrow(0, begin, count), o.ignore_index, o.label_smoothing, o.softcap,
                       o.z_loss, "sum", given(o.class_weight), o.token_scaling);
    loss += some;
    Tensor some_dhidden = dhidden.narrow(0, begin, count);
    at::mm_out(some_dhidden, dlogits, weight);
  }
  return {loss, dhidden};
}

// Of a frozen weight: only hidden has a gradient.
Tensor train_below_frozen(const LinearLossOps* ops, const Tensor& hidden, const Tensor& weight, const Tensor& target,
                          const CrossEntropyOptions& options) {
  const auto forward = [&]() -> ForwardResult {
    const auto [sum, dhidden] = loss_in_chunks(*ops, hidden, weight, target, options);
    if (options.reduction != "mean") return {{sum}, {dhidden, target}};
    const Tensor counted = at::sum(at::ne(target, options.ignore_index)).to(at::kFloat);
    return {{at::div(sum, counted)}, {dhidden, target, counted}};
  };
  const auto backward = [ops, ignore_index = options.ignore_index](BackwardCall& call) -> Tensors {
    check_backward(ops->layer);
    const Tensor& dloss = call.gradients[0];
    const Tensor factor = call.saved.size() > 2 ? at::div(dloss, call.saved[2]) : dloss;
    return {scaled(call.saved[0], of_targets(factor, call.saved[1], ignore_index))};
  };
  return differentiable({hidden}, forward, backward)[0];
}

void bind_linear_cross_entropy(SlotBase& slot, const LayerOps& layer) {
  const auto* ops = ops_of<LinearLossOps>(layer);
  bind_slot<LinearCrossEntropyForward>(slot, [ops](const Tensor& hidden, const Tensor& weight, const OptTensor& bias,
                                                   const Tensor& target, const CrossEntropyOptions& given_options) {
    const bool frozen =
        ops->rows && ops->trains() && !weight.requires_grad() && !bias && !given_options.class_weight.defined();
    if (frozen && given_options.reduction != "none" && at::GradMode::is_enabled() && hidden.requires_grad()) {
      return train_below_frozen(ops, hidden, weight, target, given_options);
    }
    return with_weights(target, given_options, [&](const CrossEntropyOptions& options) {
      if (wants_grad(hidden, weight, bias)) {
        return train_loss(ops, hidden, weight, given(bias), target, options);
      }
      return call_loss(ops->forward, options, hidden, weight, given(bias), target);
    });
  });
}

void bind_cross_entropy(SlotBase& slot, const LayerOps& layer) {
  const auto forward =
      forward_of(regular_ops(layer, Gradients::kContiguous), static_cast<CrossEntropyForward*>(nullptr));
  bind_slot<CrossEntropyForward>(
      slot, [forward](const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options) {
        return with_weights(target, options, [&](const CrossEntropyOptions& o) { return forward(logits, target, o); });
      });
}

}  // namespace

std::vector<Contract> loss_contracts() {
  const std::string options = schema_of(cross_entropy_fields()), weights = ", " + schema_of(class_weight_fields()),
                    loss = options + weights,
                    train_options = options + ", bool float32_dweight=False, int chunk_bytes=0" + weights,
                    hidden = "Tensor hidden, Tensor weight, Tensor? bias, Tensor target, ";
  return {
      {"cross_entropy/1",
       {{"forward", "(Tensor logits, Tensor target, " + loss + ") -> Tensor"},
        {"forward_train", "(Tensor logits, Tensor target, " + loss + ") -> (Tensor loss, Tensor lse)"},
        {"forward_train_inplace",
         optional_role("(Tensor(a!) logits, Tensor target, " + loss + ") -> (Tensor loss, Tensor lse)")},
        {"backward", "(Tensor dloss, Tensor logits, Tensor target, Tensor lse, " + loss + ") -> Tensor dlogits"}},
       bind_cross_entropy},
      {"linear_cross_entropy/1",
       {{"forward", "(" + hidden + options + ", int chunk_bytes=0" + weights + ") -> Tensor"},
        {"forward_train",
         "(" + hidden + train_options +
             ", bool predict=False) -> (Tensor loss, Tensor lse, Tensor dhidden, Tensor dweight, Tensor dbias, "
             "Tensor predicted)"},
        {"backward", "(Tensor dloss, " + hidden + "Tensor lse, " + train_options +
                         ") -> (Tensor dhidden, Tensor dweight, Tensor dbias)"},
        {"rows_forward_backward",
         optional_role("(Tensor logits, Tensor target, " + loss + ") -> (Tensor loss, Tensor lse, Tensor dlogits)")}},
       bind_linear_cross_entropy},
  };
}

}  // namespace hotswap::binding
