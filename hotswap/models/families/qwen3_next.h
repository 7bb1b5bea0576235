// What Qwen3-Next and Qwen 3.5 share: the gated delta rule in most layers, attention with a gate in the others.
#pragma once

#include <memory>

#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// All but experts. packed: see GatedDeltaNetOptions.
ModelConfig read_gated_delta_config(const Json& json, bool packed, const char* intermediate_key = "intermediate_size");
// In every layer experts, whose weights sum to 1, beside a part for all tokens with a gate.
void read_gated_delta_mixtures(ModelConfig& config, const Json& json);
std::unique_ptr<Block> make_gated_delta_block(const ModelConfig& config, int64_t layer);
// Experts of which each has tensors of its own, and layers that predict further tokens, which are left out.
TensorRules gated_delta_rules(const ModelConfig& config);

}  // namespace hotswap
