// Configs of families that call by names of their own what all decoders have: GPT-2's n_embd is hidden_size.
#pragma once

#include <utility>
#include <vector>

#include "hotswap/models/config.h"

namespace hotswap {

using ConfigNames = std::vector<std::pair<const char*, const char*>>;  // the family's, and ours

// What `read` makes of the config with its keys under our names too; of a key under both the family's counts. Its
// Errors have the family's names.
ModelConfig read_by_names(const Json& config, const ConfigNames& names, ModelConfig (*read)(const Json& named));

}  // namespace hotswap
