// Granite's multipliers, which its mixtures take over.
#pragma once

#include "hotswap/models/config.h"

namespace hotswap {

// Of the embedding, the scores, what a block adds, and the logits.
void read_granite_multipliers(ModelConfig& config, const Json& json);

}  // namespace hotswap
