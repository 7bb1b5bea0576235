// DeepSeek-V2's parts, which V3 takes over.
#pragma once

#include <memory>

#include "hotswap/layers/latent_attention.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/models/config.h"

namespace hotswap {

ModelConfig read_deepseek_config(const Json& json);
LatentAttentionOptions latent_attention_options(const ModelConfig& config, int64_t layer);

}  // namespace hotswap
