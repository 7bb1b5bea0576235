#include "hotswap/layers/sparse_mixer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include <limits>

#include "hotswap/layers/dropout.h"

namespace hotswap {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Choice {
  Tensor index, weight;  // [tokens, 1]
};

// Heun's third-order estimate: a share counts whole where it is the maximum, and in a quarter of the other draws; else
// a third of it. Its gradient is that of the whole.
Tensor estimated(const Tensor& share, const Tensor& is_argmax) {
  const at::NoGradGuard no_grad;
  const Tensor whole = at::logical_or(is_argmax, at::gt(seeded_uniform(share, 0, 1), 0.75));
  return at::where(whole, at::mul(share, 0), at::mul(share, -0.6667));  // to be added to the share
}

// open: the logits, of experts that are taken already -inf.
Choice choose(const Tensor& logits, const Tensor& open, double nearness, bool training) {
  const auto [best, first] = at::max(open.detach(), -1, /*keepdim=*/true);
  const Tensor plain = logits.detach();
  const Tensor far = at::gt(at::div(at::sub(best, plain), at::clamp_min(plain.abs(), best)), 2 * nearness);
  const Tensor near = at::masked_fill(open, far, kNever);
  const Tensor shares = at::softmax(near, -1);
  if (!training) return {first, at::gather(shares, -1, first)};
  // The maximum of logits with Gumbel's noise is drawn by their softmax.
  const Tensor noise = at::log(at::log(seeded_uniform(near.to(at::kFloat), 0, 1)).neg()).neg();
  const Tensor drawn = at::argmax(at::add(near.detach(), noise), -1, /*keepdim=*/true);
  const Tensor share = at::gather(shares, -1, drawn);
  return {drawn, at::add(share, estimated(share, at::eq(drawn, at::argmax(shares, -1, /*keepdim=*/true))))};
}

}  // namespace

Routing sparse_mixer(const Tensor& logits, double nearness, bool training) {
  const Choice first = choose(logits, logits, nearness, training);
  const Choice second = choose(logits, at::scatter(logits, -1, first.index, kNever), nearness, training);
  return {at::cat({first.index, second.index}, -1), at::cat({first.weight, second.weight}, -1)};
}

}  // namespace hotswap
