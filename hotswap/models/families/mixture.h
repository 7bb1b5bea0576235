// Llama's block with a mixture of experts in some layers, or in all.
#pragma once

#include <memory>

#include "hotswap/layers/mixture.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

//   hidden += attention(norm(hidden)); hidden += feed_forward(norm(hidden))
class MixtureBlock : public Block {
 public:
  // One of both parts.
  MixtureBlock(const ModelConfig& config, const SelfAttentionOptions& attention, std::unique_ptr<Mixture> mixture,
               std::unique_ptr<GatedMLP> dense, const char* name);
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override;
  std::unique_ptr<CacheLayer> make_cache_layer(const CacheOptions& options) const override {
    return self_attn_.make_cache_layer(options);
  }

 private:
  SelfAttention self_attn_;
  std::unique_ptr<Mixture> mixture_;
  std::unique_ptr<GatedMLP> dense_;
  AddRMSNorm input_layernorm_, post_attention_layernorm_;
};

// A softmax over all experts, then the choice: what most families have. Theirs to change.
MixtureOptions mixture_options(const ModelConfig& config);
// With the mixture where config.mixture.sparse says so, else with one gated MLP; `name`: of either, in a checkpoint.
std::unique_ptr<Block> mixture_block(const ModelConfig& config, const SelfAttentionOptions& attention,
                                     const MixtureOptions& mixture, int64_t layer, const char* name = "mlp");

// model.layers.*.<block>.experts.*.<gate>.weight and the others, an expert each, as one tensor for all.
struct ExpertNames {
  const char *block = "mlp", *gate = "gate_proj", *up = "up_proj", *down = "down_proj";
};
TensorRules expert_rules(const ExpertNames& names = {});
inline TensorRules separate_experts(const ModelConfig&) { return expert_rules(); }

}  // namespace hotswap
