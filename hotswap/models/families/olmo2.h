// OLMo 2's block, which OLMo 3 takes over.
#pragma once

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"

namespace hotswap {

//   hidden += norm(attention(hidden)); hidden += norm(mlp(hidden)), OLMo's with a norm over all heads of queries and of
//   keys
class Olmo2Block : public Block {
 public:
  Olmo2Block(const ModelConfig& config, int64_t layer);
  Olmo2Block(const ModelConfig& config, const SelfAttentionOptions& attention);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return self_attn_.make_cache_layer(reserve);
  }

 private:
  SelfAttention self_attn_;
  GatedMLP mlp_;
  RMSNorm post_attention_layernorm_, post_feedforward_layernorm_;
};

ModelConfig read_olmo2_config(const Json& json, const ConfigDefaults& defaults);

inline std::unique_ptr<Block> make_olmo2_block(const ModelConfig& config, int64_t layer) {
  return std::make_unique<Olmo2Block>(config, layer);
}

}  // namespace hotswap
