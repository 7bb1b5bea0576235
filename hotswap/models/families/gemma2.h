// Gemma 2's block, which Gemma 3 takes over.
#pragma once

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"

namespace hotswap {

//   hidden += norm(attention(norm(hidden))); hidden += norm(mlp(norm(hidden)))
class Gemma2Block : public Block {
 public:
  Gemma2Block(const ModelConfig& config, const SelfAttentionOptions& attention);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return self_attn_.make_cache_layer(reserve);
  }

 private:
  SelfAttention self_attn_;
  GatedMLP mlp_;
  AddRMSNorm input_layernorm_, pre_feedforward_layernorm_;
  RMSNorm post_attention_layernorm_, post_feedforward_layernorm_;
};

// Scores are divided by the root of query_pre_attn_scalar instead of the head's width; null or absent caps stay off
// unless `caps` says what an absent one means.
struct Gemma2Caps {
  double attention = 0, logits = 0;
};
void read_gemma2_scores(ModelConfig& config, const Json& json, const Gemma2Caps& absent);

// The same of a GGUF file, which has the window and the caps. `root_layers`: how many layers the one model has whose
// scores are divided by the root of hidden_size / heads.
void add_gemma2_keys(const GgufFile& file, const std::string& prefix, int64_t root_layers,
                     nlohmann::ordered_json& config);
TensorRules gemma2_gguf_rules(const ModelConfig& config);

}  // namespace hotswap
