// What families with mixtures of experts in some layers, or in all, share.
#pragma once

#include <memory>

#include "hotswap/layers/mixture.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// A softmax over all experts, then the choice: what most families have. Theirs to change.
MixtureOptions mixture_options(const ModelConfig& config);
// Llama's block, with the mixture where config.mixture.sparse says so, else with one gated MLP; `name`: of either, in a
// checkpoint.
std::unique_ptr<Block> mixture_block(const ModelConfig& config, std::unique_ptr<TokenMixer> attention,
                                     const MixtureOptions& mixture, int64_t layer, const char* name = "mlp");
std::unique_ptr<Block> mixture_block(const ModelConfig& config, const SelfAttentionOptions& attention,
                                     const MixtureOptions& mixture, int64_t layer, const char* name = "mlp");

// model.layers.*.<block>.experts.*.<gate>.weight and the others, an expert each, as one tensor for all of the model's
// <own_block>.
struct ExpertNames {
  const char *block = "mlp", *gate = "gate_proj", *up = "up_proj", *down = "down_proj", *own_block = "mlp";
};
TensorRules expert_rules(const ExpertNames& names = {});
inline TensorRules separate_experts(const ModelConfig&) { return expert_rules(); }

}  // namespace hotswap
