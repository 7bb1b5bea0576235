// The mixtures of experts after DeepSeek's first layers, which other families took over.
#pragma once

#include "hotswap/layers/mixture.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// What families with DeepSeek's mixtures differ in where keys are absent.
struct DeepseekMixtures {
  int64_t first_dense, groups, top_groups;
  double scale;
  int64_t shared_experts = 1;
  bool renormalize = true;
  int64_t group_votes = 2;  // n: a group's score is the sum of its n best
};
// first_k_dense_replace, and the mixture of the layers after those; groups are checked.
void read_deepseek_mixtures(ModelConfig& config, const Json& json, const DeepseekMixtures& absent);
// A softmax over all experts, whose weights stay float32; shared experts beside.
MixtureOptions deepseek_mixture(const ModelConfig& config);
// V3's: a sigmoid of each score, a correction that only the choice reads.
MixtureOptions deepseek_v3_mixture(const ModelConfig& config);
RouterOptions deepseek_v3_router(const ModelConfig& config);
// Layers after the last one, which predict further tokens: no part of the model here.
TensorRule layers_beyond(const ModelConfig& config);

// The same in GGUF files: tensors, before the rules of a decoder, and keys, less the architecture's prefix.
TensorRules gguf_deepseek_mixture_rules(const ModelConfig& config);
const std::vector<std::string>& gguf_deepseek_mixture_keys();
void gguf_extend_deepseek_mixtures(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config);
bool gguf_has_sigmoid_router(const GgufFile& file, const std::string& prefix);

}  // namespace hotswap
