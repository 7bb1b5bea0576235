// Self-attention as decoders have it: projections, norms of queries and keys, rotary embedding, cache, attention. What
// families differ in are its options; those of the attention itself are the contract's (attention.h).
#pragma once

#include <memory>
#include <optional>

#include "hotswap/layers/decoder_layer.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/temperature.h"
#include "hotswap/layers/token_mixer.h"

namespace hotswap {

struct SelfAttentionOptions {
  int64_t layer = 0;  // its index in the cache
  int64_t hidden_size, num_heads, num_kv_heads, head_dim;
  bool qkv_bias = false, output_bias = false;
  std::optional<RMSNormOptions> qk_norm = std::nullopt;  // of every query and key head, before the rotary embedding
  bool qk_norm_of_all_heads = false;                     // over all heads of a token together instead
  std::optional<LayerNormOptions> qk_layer_norm = std::nullopt;  // the same, a LayerNorm over each head
  bool norm_for_each_head = false;                               // whose weights are one for each head
  double clip_qkv = 0;                                           // of queries, keys and values; 0: off
  double key_multiplier = 1;                                     // of keys, before the rotary embedding
  bool interleaved_rotary = false;                               // what turns together stands side by side
  bool wide_rotary = false;                          // turned in float32, by cos and sin of the model's dtype
  std::optional<double> l2_norm_eps = std::nullopt;  // queries and keys over each head, after the rotary embedding
  Temperature temperature = {};                      // of queries
  bool rotary = true;                                // of as much of a head as the tables are wide
  bool has_rotary = true;                      // the model has a rotary embedding, whether or not this layer uses it
  std::optional<double> scale = std::nullopt;  // none: head_dim^-0.5
  int64_t sliding_window = 0;                  // tokens that a query sees, its own included; 0: all
  int64_t chunk = 0;                           // see AttentionOptions, as the next two
  double softcap = 0;
  bool sinks = false;        // a parameter "sinks" [num_heads]
  bool output_gate = false;  // q_proj makes a gate for each head, after its query: its sigmoid multiplies the result
  double dropout = 0;        // in training
  bool causal = true;        // false: a query also sees keys after its own, as many as before it
};

class SelfAttention : public TokenMixer {
 public:
  explicit SelfAttention(const SelfAttentionOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override;
  const SelfAttentionOptions& options() const { return options_; }
  std::vector<const Linear*> projections() const { return {&q_proj_, &k_proj_, &v_proj_, &o_proj_}; }
  std::vector<Linear*> joint_projections() { return {&q_proj_, &k_proj_, &v_proj_}; }  // which read the same x
  void add_to(DecoderLayerParts& parts) const;  // its weights, and what of its options that knows
  // Whether one_token() serves the rows of a ragged step, as far as that does not depend on the step: kernels make
  // heads ready and attend to rows of tokens.
  bool serves_ragged() const;
  // Of the layer that this is a part of: where a kernel is bound that makes heads ready, one new token of each row goes
  // by it. The slot outlives the calls.
  void set_layer_slot(const DecoderLayerSlot* slot) { layer_slot_ = slot; }

 private:
  Tensor one_token(const Tensor& x, const ForwardContext& context) const;
  SelfAttentionOptions options_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::unique_ptr<Norm> q_norm_, k_norm_;       // over head_dim, or all heads
  Tensor sinks_;                                // [num_heads], or undefined
  std::unique_ptr<WeightlessRMSNorm> l2_norm_;  // as transformers has it: one for queries and keys
  RotaryPosEmb rotary_fn_;
  AttentionOptions attention_options_;
  Slot<AttentionForward> attention_;
  const DecoderLayerSlot* layer_slot_ = nullptr;
};

// "sdpa", or "eager" where a layer below the module has what sdpa lacks (softcap, sinks, a bias).
const char* stock_attention_of(Module& module);
// Lets every attention below a module run this stock forward where no kernel is bound.
void set_stock_attention(Module& module, const AttentionKind& kind);

}  // namespace hotswap
