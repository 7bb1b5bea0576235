#include "hotswap/layers/attention.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/add.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// torch's own, [batch, heads, time, head_dim]. On a GPU where torch prefers cuDNN, its flash kernel takes the same
// inputs and is taken while generating: there lengths grow from call to call, and cuDNN builds a plan for each, 34 ms
// on an H200 (docs/notes/decode_gpu.md).
Tensor torch_sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
                  bool causal, double scale, bool grouped) {
  const bool may_vary = q.is_cuda() && !at::GradMode::is_enabled() && !mask && dropout == 0;
  if (may_vary && at::globalContext().userEnabledFlashSDP()) {
    const int64_t choice = at::_fused_sdp_choice(q, k, v, mask, dropout, causal, scale, grouped);
    if (choice == static_cast<int64_t>(at::SDPBackend::cudnn_attention)) {
      return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v, dropout, causal, false, scale));
    }
  }
  return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, grouped);
}

// One decoded token per row and several query heads per key head: the heads of a group read the same keys, so they
// stand in for time. No copy of the cache, one small product per group. Without gradients only.
Tensor sdpa_one_token(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
                      double scale) {
  const int64_t batch = q.size(0), heads = q.size(2), dim = q.size(3), groups = k.size(2);
  const at::AutoDispatchBelowADInplaceOrView guard;  // torch would keep track of the cache's views
  const Tensor out =
      torch_sdpa(q.reshape({batch, groups, heads / groups, dim}), k.transpose(1, 2), v.transpose(1, 2), mask,
                 /*dropout=*/0, /*causal=*/false, scale, /*grouped=*/false);
  return out.reshape({batch, 1, heads, dim});
}

// [batch, kv_heads, time, dim] -> [batch, kv_heads * times, time, dim], each head `times` in a row
Tensor repeat_heads(const Tensor& x, int64_t times) {
  if (times == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), times, x.size(2), x.size(3)})
      .reshape({x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}

void refuse_what_sdpa_lacks(const AttentionOptions& o) {
  std::vector<std::string> found;
  if (o.softcap != 0) found.emplace_back("a softcap");
  if (o.sinks.defined()) found.emplace_back("sinks");
  if (o.alibi_slopes.defined()) found.emplace_back("ALiBi");
  if (o.bias.defined()) found.emplace_back("a bias of scores");
  if (found.empty()) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "attention that torch's scaled_dot_product_attention computes",
               .got = cat("a layer with ", join(found, " and "), ", which change the scores inside the softmax"),
               .next = "set attn_implementation to eager, or to a kernel that has them"});
}

Tensor of_step(AttentionForward* forward, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
               const AttentionMetadata& metadata) {
  return attend_rows(q, k, v, metadata,
                     [&](const Tensor& rows, const Tensor& key, const Tensor& value, const auto& of) {
                       return forward(rows, key, value, o, of);
                     });
}

constexpr AttentionKind kAttentionKinds[] = {{"sdpa", stock::sdpa}, {"eager", stock::eager}};

}  // namespace

Tensor stock::sdpa(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
                   const AttentionMetadata& metadata) {
  refuse_what_sdpa_lacks(o);
  if (metadata.sequence().step != nullptr) return of_step(stock::sdpa, q, k, v, o, metadata);
  const int64_t time = q.size(1), kv_time = k.size(1), groups = q.size(2) / k.size(2);
  const bool by_flag = o.causal && time == kv_time && !metadata.hides(time, kv_time, o);
  const bool sees_all = (!o.causal || time == 1) && !metadata.hides(time, kv_time, o);
  const auto mask = by_flag || sees_all ? std::nullopt : std::optional(metadata.visible(time, k, o));
  if (time == 1 && groups > 1 && o.dropout == 0 && !at::GradMode::is_enabled()) {
    return sdpa_one_token(q, k, v, mask, o.scale);
  }
  // With a mask torch leaves its fast kernel for grouped heads; repeating them first keeps it.
  const bool repeat = groups > 1 && mask;
  const Tensor key = repeat ? repeat_heads(k.transpose(1, 2), groups) : k.transpose(1, 2);
  const Tensor value = repeat ? repeat_heads(v.transpose(1, 2), groups) : v.transpose(1, 2);
  return torch_sdpa(q.transpose(1, 2), key, value, mask, o.dropout, by_flag && time > 1, o.scale,
                    /*grouped=*/groups > 1 && !repeat)
      .transpose(1, 2);
}

Tensor stock::eager(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
                    const AttentionMetadata& metadata) {
  if (metadata.sequence().step != nullptr) return of_step(stock::eager, q, k, v, o, metadata);
  const int64_t time = q.size(1), kv_time = k.size(1), groups = q.size(2) / k.size(2);
  const Tensor key = repeat_heads(k.transpose(1, 2), groups), value = repeat_heads(v.transpose(1, 2), groups);
  Tensor scores =
      at::mul(at::matmul(q.transpose(1, 2), key.transpose(2, 3)), o.scale);  // [batch, heads, time, kv_time]
  if (o.bias.defined()) scores = at::add(scores, o.bias);
  if (o.softcap != 0) scores = at::mul(at::tanh(at::div(scores, o.softcap)), o.softcap);
  if (o.alibi_slopes.defined()) {
    const Tensor far = at::mul(metadata.distance(time, k).abs(), o.alibi_slopes.to(at::kFloat).view({-1, 1, 1}));
    scores = at::sub(scores, far.to(scores.scalar_type()));  // [heads, time, kv_time]
  }
  if ((o.causal && time > 1) || metadata.hides(time, kv_time, o)) scores = at::add(scores, metadata.bias(time, k, o));
  if (o.sinks.defined()) {
    const Tensor sinks = o.sinks.to(scores.scalar_type()).view({1, -1, 1, 1});
    scores = at::cat({scores, sinks.expand({scores.size(0), -1, time, 1})}, -1);
    scores = at::sub(scores, at::amax(scores, {-1}, /*keepdim=*/true));  // rounded, as in transformers
  }
  Tensor weights = o.sinks.defined() ? at::softmax(scores, -1).narrow(-1, 0, kv_time)
                                     : at::softmax(scores, -1, at::kFloat).to(q.scalar_type());
  if (o.dropout > 0) weights = at::dropout(weights, o.dropout, /*train=*/true);
  return at::matmul(weights, value).transpose(1, 2);
}

const AttentionKind& attention_kind(const std::string& name) {
  std::vector<std::string> known;
  for (const AttentionKind& kind : kAttentionKinds) {
    if (name == kind.name) return kind;
    known.emplace_back(kind.name);
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("an attention implementation: ", join(known)),
               .got = cat('"', name, '"'),
               .next = "set attn_implementation to one of them, or to a kernel as org/repo[@revision]"});
}

}  // namespace hotswap
