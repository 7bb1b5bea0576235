#include "hotswap/layers/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

int64_t reduction_of(const std::string& name) {
  if (name == "mean") return at::Reduction::Mean;
  if (name == "sum") return at::Reduction::Sum;
  if (name == "none") return at::Reduction::None;
  throw Error({.wanted = "a reduction: mean, sum or none",
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
  Tensor loss = at::cross_entropy_loss(wide, target, {}, reduction_of(o.reduction), o.ignore_index, o.label_smoothing);
  if (o.z_loss == 0) return loss;
  const Tensor counts = at::ne(target, o.ignore_index);  // [n]
  const Tensor square = at::mul(at::pow(at::logsumexp(wide, 1), 2), o.z_loss);
  const Tensor extra = at::where(counts, square, at::zeros_like(square));  // [n]
  if (o.reduction == "none") return at::add(loss, extra);
  const Tensor total = at::sum(extra);
  return at::add(loss, o.reduction == "sum" ? total : at::div(total, at::sum(counts)));
}

Tensor stock::linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                                   const Tensor& target, const CrossEntropyOptions& options) {
  return stock::cross_entropy(at::linear(hidden, weight, bias), target, options);
}

Tensor CausalLMLoss::from_logits(const Tensor& logits, const LossArguments& a) const {
  return divided(loss_(logits.reshape({-1, logits.size(-1)}), shifted(a), options_of(a)), a);
}

Tensor CausalLMLoss::from_hidden(const Tensor& hidden, const Tensor& weight, const LossArguments& a) const {
  return divided(linear_(hidden.reshape({-1, hidden.size(-1)}), weight, std::nullopt, shifted(a), options_of(a)), a);
}

}  // namespace hotswap
