#include "hotswap/layers/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/le.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// Padding that hides nothing is no padding; asking costs a synchronisation on a GPU, as in transformers.
Tensor real_padding(const Tensor& padding) {
  if (!padding.defined()) return {};
  const Tensor kept = padding.to(at::kBool);
  return kept.all().item<bool>() ? Tensor() : kept;
}

// true where query i may see key j                                                     [1 or batch, 1, time, kv_time]
Tensor visible(const MaskArguments& a, const Tensor& padding) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(a.device);
  const Tensor queries = at::arange(a.kv_time - a.time, a.kv_time, options).unsqueeze(1);  // [time, 1]
  const Tensor causal = at::le(at::arange(a.kv_time, options).unsqueeze(0), queries);      // [time, kv_time]
  const Tensor all = causal.unsqueeze(0).unsqueeze(0);
  return padding.defined() ? at::bitwise_and(all, padding.unsqueeze(1).unsqueeze(1)) : all;
}

AttentionMask sdpa_mask(const MaskArguments& a) {
  const Tensor padding = real_padding(a.padding);
  if (!padding.defined() && (a.time == 1 || a.time == a.kv_time)) return {.causal = a.time > 1};
  return {.mask = a.time == 1 ? padding.unsqueeze(1).unsqueeze(1) : visible(a, padding)};
}

AttentionMask eager_mask(const MaskArguments& a) {
  const Tensor padding = real_padding(a.padding);
  if (!padding.defined() && a.time == 1) return {};
  const auto options = at::TensorOptions().dtype(a.dtype).device(a.device);
  const double lowest = a.dtype == at::kFloat      ? std::numeric_limits<float>::lowest()
                        : a.dtype == at::kBFloat16 ? static_cast<double>(std::numeric_limits<c10::BFloat16>::lowest())
                        : a.dtype == at::kHalf     ? -65504.0
                                                   : std::numeric_limits<double>::lowest();
  return {.mask = at::where(visible(a, padding), at::zeros({}, options), at::full({}, lowest, options))};
}

// One decoded token per row and several query heads per key head: the heads of a group read the same keys, so they
// stand in for time. No copy of the cache, one small product per group.
Tensor sdpa_one_token(const AttentionArguments& a) {
  const int64_t batch = a.query.size(0), heads = a.query.size(1), dim = a.query.size(3), groups = a.key.size(1);
  const Tensor q = a.query.reshape({batch, groups, heads / groups, dim});
  const Tensor out = at::scaled_dot_product_attention(
      q, a.key, a.value, a.mask.mask.defined() ? std::optional(a.mask.mask) : std::nullopt, 0.0, false, a.scaling);
  return out.reshape({batch, 1, heads, dim});
}

// [batch, kv_heads, time, dim] -> [batch, kv_heads * times, time, dim], each head `times` in a row
Tensor repeat_heads(const Tensor& x, int64_t times) {
  if (times == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), times, x.size(2), x.size(3)})
      .reshape({x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}

Tensor sdpa(const AttentionArguments& a) {
  const int64_t groups = a.query.size(1) / a.key.size(1);
  if (a.query.size(2) == 1 && groups > 1 && a.dropout == 0 && !at::GradMode::is_enabled()) return sdpa_one_token(a);
  const bool masked = a.mask.mask.defined();
  // With a mask torch leaves its fast kernel for grouped heads; repeating them first keeps it.
  const bool repeat = groups > 1 && masked;
  const Tensor key = repeat ? repeat_heads(a.key, groups) : a.key;
  const Tensor value = repeat ? repeat_heads(a.value, groups) : a.value;
  return at::scaled_dot_product_attention(a.query, key, value, masked ? std::optional(a.mask.mask) : std::nullopt,
                                          a.dropout, a.mask.causal, a.scaling, /*enable_gqa=*/groups > 1 && !repeat)
      .transpose(1, 2);
}

Tensor eager(const AttentionArguments& a) {
  const int64_t groups = a.query.size(1) / a.key.size(1);
  const Tensor key = repeat_heads(a.key, groups), value = repeat_heads(a.value, groups);
  Tensor weights = at::mul(at::matmul(a.query, key.transpose(2, 3)), a.scaling);  // [batch, heads, time, kv_time]
  if (a.mask.mask.defined()) weights = at::add(weights, a.mask.mask);
  weights = at::softmax(weights, -1, at::kFloat).to(a.query.scalar_type());
  if (a.dropout > 0) weights = at::dropout(weights, a.dropout, /*train=*/true);
  return at::matmul(weights, value).transpose(1, 2);
}

constexpr AttentionKind kKinds[] = {{"sdpa", sdpa_mask, sdpa}, {"eager", eager_mask, eager}};

}  // namespace

const AttentionKind& attention_kind(const std::string& name) {
  std::vector<std::string> known;
  for (const AttentionKind& kind : kKinds) {
    if (name == kind.name) return kind;
    known.emplace_back(kind.name);
  }
  throw Error({.wanted = cat("an attention implementation: ", join(known)),
               .got = cat('"', name, '"'),
               .next = "set attn_implementation to one of them"});
}

}  // namespace hotswap
