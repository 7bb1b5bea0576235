// Multi-head latent attention, DeepSeek's: queries, keys and values are projected up from small latents, every head's
// key ends in one rotary part that all heads share, and values may be narrower than keys. The cache keeps the latents.
#pragma once

#include <memory>
#include <optional>

#include "hotswap/layers/self_attention.h"

namespace hotswap {

// Where the two numbers that turn together stand in a rotary part.
enum class RotaryOrder {
  kHalves,           // half of it apart
  kInterleaved,      // side by side
  kFromInterleaved,  // side by side as projected, half apart once turned: what DeepSeek-V3 does
};

struct LatentAttentionOptions {
  int64_t layer = 0;  // its place in the cache
  int64_t hidden_size, num_heads;
  std::optional<int64_t> q_lora_rank;  // none: queries are projected from the hidden state itself
  int64_t kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
  bool bias = false;  // of what is projected down, and of the output
  RotaryOrder rotary_order = RotaryOrder::kHalves;
  std::optional<double> scale = std::nullopt;  // none: (qk_nope_head_dim + qk_rope_head_dim)^-0.5
  double dropout = 0;                          // in training
};

class LatentAttention : public TokenMixer {
 public:
  explicit LatentAttention(const LatentAttentionOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override;

 private:
  Tensor queries(const Tensor& x) const;  // [batch, time, hidden_size] -> [batch, time, heads, qk_head_dim]
  // Of queries [batch, time, heads, qk_head_dim] over what the memory keeps, [batch, keys, 1, rope] and
  // [batch, keys, 1, kv_lora_rank] -> [batch, time, heads, v_head_dim]
  Tensor attended(const Tensor& q, const Tensor& k_turned, const Tensor& latent,
                  const AttentionMetadata& metadata) const;
  LatentAttentionOptions options_;
  std::unique_ptr<Linear> q_proj_, q_a_proj_, q_b_proj_;  // the first, or the other two
  std::unique_ptr<RMSNorm> q_a_layernorm_;
  Linear kv_a_proj_with_mqa_, kv_b_proj_, o_proj_;
  RMSNorm kv_a_layernorm_;
  RotaryPosEmb rotary_fn_;
  AttentionOptions attention_options_;
  Slot<AttentionForward> attention_;
};

}  // namespace hotswap
