// Queries, keys and values that a checkpoint packs head by head, or group by group, into one tensor.
#pragma once

#include <string>

#include "hotswap/models/config.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// Of each key head: the queries that share it, then its key, then its value. `attention`: of the model,
// "model.layers.*. self_attn".
TensorRule packed_heads(const std::string& from, const std::string& attention, const ModelConfig& config);

}  // namespace hotswap
