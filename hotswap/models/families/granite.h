// Granite's multipliers and mixtures, which its later families take over.
#pragma once

#include "hotswap/layers/mixture.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// Of the embedding, the scores, what a block adds, and the logits.
void read_granite_multipliers(ModelConfig& config, const Json& json);

// A router that weighs the experts that it has chosen by a softmax over them.
MixtureOptions granite_mixture(const ModelConfig& config);
// Granite's names of a mixture's tensors, as all experts' one.
TensorRules granite_expert_rules();

// Granite-MoE's tensors in GGUF files.
TensorRules gguf_granite_rules(const ModelConfig& config);
// The multipliers in GGUF files; keys, less the architecture's prefix.
const std::vector<std::string>& gguf_granite_keys();
void gguf_extend_granite(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config);

}  // namespace hotswap
