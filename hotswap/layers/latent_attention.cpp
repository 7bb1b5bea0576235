#include "hotswap/layers/latent_attention.h"

#include <ATen/ops/cat.h>

#include <cmath>

namespace hotswap {
namespace {

SlotNeeds latent_needs(const LatentAttentionOptions& o) {
  SlotNeeds needs{.features = {"causal"},
                  .numbers = {{"head_dims", {o.qk_nope_head_dim + o.qk_rope_head_dim, o.v_head_dim}}}};
  if (o.dropout > 0) needs.features.emplace_back("dropout");
  return needs;
}

// Numbers side by side, half of them apart.                                                [..., dim] -> [..., dim]
Tensor half_apart(const Tensor& x) {
  return at::cat({x.slice(-1, 0, c10::nullopt, 2), x.slice(-1, 1, c10::nullopt, 2)}, -1);
}

}  // namespace

LatentAttention::LatentAttention(const LatentAttentionOptions& o)
    : options_(o),
      kv_a_proj_with_mqa_(o.hidden_size, o.kv_lora_rank + o.qk_rope_head_dim, o.bias),
      kv_b_proj_(o.kv_lora_rank, o.num_heads * (o.qk_nope_head_dim + o.v_head_dim), /*with_bias=*/false),
      o_proj_(o.num_heads * o.v_head_dim, o.hidden_size, o.bias),
      kv_a_layernorm_(o.kv_lora_rank, {}),  // not of the config's eps, as transformers has it
      rotary_fn_(/*interleaved=*/o.rotary_order == RotaryOrder::kInterleaved),
      attention_options_{
          .scale = o.scale.value_or(std::pow(static_cast<double>(o.qk_nope_head_dim + o.qk_rope_head_dim), -0.5))},
      attention_(this, "attention", "attention/1", stock::sdpa, latent_needs(o)) {
  const int64_t width = o.num_heads * (o.qk_nope_head_dim + o.qk_rope_head_dim);
  if (o.q_lora_rank) {
    q_a_proj_ = std::make_unique<Linear>(o.hidden_size, *o.q_lora_rank, o.bias);
    q_a_layernorm_ = std::make_unique<RMSNorm>(*o.q_lora_rank, RMSNormOptions());
    q_b_proj_ = std::make_unique<Linear>(*o.q_lora_rank, width, /*with_bias=*/false);
    own("q_a_proj", *q_a_proj_);
    own("q_a_layernorm", *q_a_layernorm_);
    own("q_b_proj", *q_b_proj_);
  } else {
    q_proj_ = std::make_unique<Linear>(o.hidden_size, width, /*with_bias=*/false);
    own("q_proj", *q_proj_);
  }
  own("kv_a_proj_with_mqa", kv_a_proj_with_mqa_);
  own("kv_a_layernorm", kv_a_layernorm_);
  own("kv_b_proj", kv_b_proj_);
  own("o_proj", o_proj_);
  own("rotary_fn", rotary_fn_);
}

Tensor LatentAttention::queries(const Tensor& x) const {
  const Tensor q = q_proj_ ? q_proj_->forward(x) : q_b_proj_->forward(q_a_layernorm_->forward(q_a_proj_->forward(x)));
  return q.view({x.size(0), x.size(1), options_.num_heads, -1});
}

Tensor LatentAttention::forward(const Tensor& x, const ForwardContext& context) const {
  const LatentAttentionOptions& o = options_;
  const int64_t batch = x.size(0), time = x.size(1);
  const Tensor q = queries(x), down = kv_a_proj_with_mqa_.forward(x);  // [batch, time, kv_lora_rank + rope]
  // As one head each, which is how the cache and the rotary embedding take them.
  Tensor latent = kv_a_layernorm_.forward(down.narrow(-1, 0, o.kv_lora_rank)).unsqueeze(2);
  Tensor k_turned = down.narrow(-1, o.kv_lora_rank, o.qk_rope_head_dim).unsqueeze(2);
  Tensor q_turned = q.narrow(-1, o.qk_nope_head_dim, o.qk_rope_head_dim);
  if (o.rotary_order == RotaryOrder::kFromInterleaved) {
    q_turned = half_apart(q_turned);
    k_turned = half_apart(k_turned);
  }
  std::tie(q_turned, k_turned) = rotary_fn_.forward(q_turned.transpose(1, 2), k_turned.transpose(1, 2), context.rope);
  q_turned = q_turned.transpose(1, 2);  // [batch, time, heads, rope]
  k_turned = k_turned.transpose(1, 2);  // [batch, time, 1, rope]
  if (context.memory != nullptr) std::tie(k_turned, latent) = context.memory->update(o.layer, k_turned, latent);

  const Tensor q_all = at::cat({q.narrow(-1, 0, o.qk_nope_head_dim), q_turned}, -1);
  const auto attend = [&](const Tensor& queries, const Tensor& turned, const Tensor& latents,
                          const AttentionMetadata& metadata) { return attended(queries, turned, latents, metadata); };
  const Tensor out = context.attention.sequence().step == nullptr
                         ? attend(q_all, k_turned, latent, context.attention)
                         : attend_rows(q_all, k_turned, latent, context.attention, attend);
  return o_proj_.forward(out.reshape({batch, time, -1}));
}

Tensor LatentAttention::attended(const Tensor& q, const Tensor& k_turned, const Tensor& latent,
                                 const AttentionMetadata& metadata) const {
  const LatentAttentionOptions& o = options_;
  const Tensor up =
      kv_b_proj_.forward(latent).reshape({latent.size(0), latent.size(1), o.num_heads, -1});  // [..., nope + v]
  const Tensor k = at::cat({up.narrow(-1, 0, o.qk_nope_head_dim), k_turned.expand({-1, -1, o.num_heads, -1})}, -1);
  const Tensor v = up.narrow(-1, o.qk_nope_head_dim, o.v_head_dim);
  AttentionOptions attention = attention_options_;
  attention.dropout = training() ? o.dropout : 0;
  return attention_(q, k, v, attention, metadata);
}

std::unique_ptr<CacheLayer> LatentAttention::make_cache_layer(int64_t reserve) const {
  return make_key_value_layer(reserve);
}

}  // namespace hotswap
