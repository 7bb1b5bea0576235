// What Gemma's generations share.
#pragma once

#include <utility>
#include <vector>

#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// Norms that keep weight - 1, an embedding times sqrt(hidden_size) that is the head's weight too, a tanh-GELU gate.
// `defaults`: what differs between the generations.
ModelConfig read_gemma_config(const Json& json, ConfigDefaults defaults);
// use_bidirectional_attention, which transformers has for Gemma 3 (EmbeddingGemma).
bool sees_both_sides(const Json& json);

// llama.cpp keeps these norms' weights whole; `norms`: its names in a layer, and ours.
TensorRules gemma_gguf_rules(const std::vector<std::pair<const char*, const char*>>& norms);

}  // namespace hotswap
