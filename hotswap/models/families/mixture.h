// What families with mixtures of experts in some layers, or in all, share.
#pragma once

#include <memory>

#include "hotswap/layers/mixture.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"
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
// llama.cpp's names, before those of gguf_decoder_rules(): all experts of a projection are one tensor, gate and up
// apart.
TensorRules gguf_expert_rules(const ExpertLayout& layout = {}, const char* router = "gate", const char* block = "mlp");
// A GGUF file's keys of experts, under a config's names.
struct GgufExpertKeys {
  const char *experts = "num_experts", *hidden = "moe_intermediate_size";
};
void gguf_extend_experts(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config,
                         const GgufExpertKeys& keys = {});
inline TensorRules separate_experts(const ModelConfig&) { return expert_rules(); }

}  // namespace hotswap
