#include "hotswap/layers/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/div.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

int64_t reduction_of(const std::string& name) {
  if (name == "mean") return at::Reduction::Mean;
  if (name == "sum") return at::Reduction::Sum;
  if (name == "none") return at::Reduction::None;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a reduction: mean, sum or none",
               .got = cat('"', name, '"'),
               .next = "set CrossEntropyOptions::reduction to one of them"});
}

// [batch, time] -> [batch * time], row i holding the label of token i + 1
Tensor shifted(const LossArguments& a) {
  return at::constant_pad_nd(a.labels, {0, 1}, a.ignore_index).narrow(1, 1, a.labels.size(1)).reshape({-1});
}

CrossEntropyOptions options_of(const LossArguments& a) {
  return {.ignore_index = a.ignore_index, .reduction = a.items ? "sum" : "mean"};
}

Tensor divided(const Tensor& loss, const LossArguments& a) { return a.items ? at::div(loss, *a.items) : loss; }

}  // namespace

Tensor stock::cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  Tensor wide = logits.to(at::kFloat);  // [n, vocab]
  if (o.softcap != 0) wide = at::mul(at::tanh(at::div(wide, o.softcap)), o.softcap);
  const std::optional<Tensor> weight =
      o.class_weight.defined() ? std::optional(o.class_weight.to(at::kFloat)) : std::nullopt;
  const auto loss = [&](int64_t reduction) {
    return at::cross_entropy_loss(wide, target, weight, reduction, o.ignore_index, o.label_smoothing);
  };
  const int64_t reduction = reduction_of(o.reduction);
  if (o.z_loss == 0 && !o.token_scaling) return loss(reduction);
  const Tensor counts = at::ne(target, o.ignore_index);  // [n]
  const Tensor square = at::mul(at::pow(at::logsumexp(wide, 1), 2), o.z_loss);
  Tensor rows = loss(at::Reduction::None), extra = at::where(counts, square, 0.0);  // [n], [n]
  if (o.token_scaling) {
    const Tensor surprise = at::cross_entropy_loss(wide, target, {}, at::Reduction::None, o.ignore_index);
    const Tensor probability = at::exp(at::neg(surprise)).detach();  // [n]
    rows = at::mul(rows, probability);
    extra = at::mul(extra, probability);
  }
  if (reduction == at::Reduction::None) return at::add(rows, extra);
  if (reduction == at::Reduction::Sum) return at::sum(at::add(rows, extra));
  const Tensor count = at::sum(counts);
  const Tensor weights = weight ? at::sum(target_weights(*weight, target, o.ignore_index)) : count;
  return at::add(at::div(at::sum(rows), weights), at::div(at::sum(extra), count));
}

Tensor target_weights(const Tensor& class_weight, const Tensor& target, int64_t ignore_index) {
  const Tensor counts = at::ne(target, ignore_index);
  // A target outside of the vocabulary is for the loss itself to refuse.
  const Tensor word = at::clamp(at::where(counts, target, 0), 0, class_weight.size(0) - 1);
  return at::where(counts, at::index_select(class_weight, 0, word), 0.0);
}

Tensor stock::linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                                   const Tensor& target, const CrossEntropyOptions& options) {
  return stock::cross_entropy(at::linear(hidden, weight, bias), target, options);
}

Tensor CausalLMLoss::from_logits(const Tensor& logits, const LossArguments& a) const {
  return divided(loss_(logits.reshape({-1, logits.size(-1)}), shifted(a), options_of(a)), a);
}

Tensor CausalLMLoss::from_hidden(const Tensor& hidden, const Tensor& weight, const LossArguments& a) const {
  CrossEntropyOptions options = options_of(a);
  options.softcap = a.softcap;
  const auto bias = a.bias.defined() ? std::optional(a.bias) : std::nullopt;
  return divided(linear_(hidden.reshape({-1, hidden.size(-1)}), weight, bias, shifted(a), options), a);
}

void CausalLMLoss::set_head_fuses(bool fuses) {
  linear_.set_needs(fuses ? SlotNeeds{} : SlotNeeds{.features = {"an output head with a LoRA adapter or of a shard"}});
}

}  // namespace hotswap
