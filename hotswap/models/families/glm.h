// GLM's config, attention and names, which GLM-4 takes over.
#pragma once

#include "hotswap/layers/self_attention.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

ModelConfig read_glm_config(const Json& json);
SelfAttentionOptions glm_attention(const ModelConfig& config, int64_t layer);
TensorRules glm_rules(const ModelConfig& config);
TensorRules glm_module_names(const ModelConfig& config);
void gguf_whole_heads(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config);

}  // namespace hotswap
