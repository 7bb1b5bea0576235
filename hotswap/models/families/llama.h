// Llama's block, which its relatives take over with other options.
#pragma once

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"

namespace hotswap {

//   hidden += attention(norm(hidden)); hidden += mlp(norm(hidden))
class LlamaBlock : public Block {
 public:
  LlamaBlock(const ModelConfig& config, const SelfAttentionOptions& attention);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(const CacheOptions& options) const override {
    return self_attn_.make_cache_layer(options);
  }

 private:
  SelfAttention self_attn_;
  GatedMLP mlp_;
  AddRMSNorm input_layernorm_, post_attention_layernorm_;
  // One new token of each row through a kernel for the whole layer; undefined where that is not what is asked.
  Tensor step(const HiddenState& in, const ForwardContext& context) const;
  double eps_;
  std::string activation_;  // "silu", "gelu_tanh", or another
  Slot<DecoderLayerForward> step_;
};

// What every config says of a layer's attention: sizes, window, dropout. Biases and norms are the family's to add.
SelfAttentionOptions attention_options(const ModelConfig& config, int64_t layer);

}  // namespace hotswap
