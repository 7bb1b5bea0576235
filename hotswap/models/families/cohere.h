// Cohere's block and config, which Cohere 2 takes over.
#pragma once

#include <memory>

#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"

namespace hotswap {

// LayerNorms without a bias, in float32, and logits times logit_scale. `defaults`: what differs between the
// generations.
ModelConfig read_cohere_config(const Json& json, ConfigDefaults defaults);
std::unique_ptr<Block> make_cohere_block(const ModelConfig& config, int64_t layer);

}  // namespace hotswap
