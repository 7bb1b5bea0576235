// DeepSeek-V2's parts, which V3 takes over.
#pragma once

#include <memory>

#include "hotswap/layers/latent_attention.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

ModelConfig read_deepseek_config(const Json& json);
LatentAttentionOptions latent_attention_options(const ModelConfig& config, int64_t layer);

// Of GGUF files, V3's too.
TensorRules gguf_deepseek_rules(const ModelConfig& config);
std::vector<std::string> gguf_deepseek_keys();
void gguf_extend_deepseek(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config);

}  // namespace hotswap
