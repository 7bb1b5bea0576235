// Granite's multipliers and mixtures, which its later families take over.
#pragma once

#include "hotswap/layers/mixture.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// Of the embedding, the scores, what a block adds, and the logits.
void read_granite_multipliers(ModelConfig& config, const Json& json);

// A router that weighs the experts that it has chosen by a softmax over them.
MixtureOptions granite_mixture(const ModelConfig& config);
// Granite's names of a mixture's tensors, as all experts' one.
TensorRules granite_expert_rules();

}  // namespace hotswap
