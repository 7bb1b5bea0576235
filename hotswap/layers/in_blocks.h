// A weight of a checkpoint in blocks that kernels read (weight_blocks.h).
#pragma once

#include "hotswap/layers/weight.h"

namespace hotswap {

// The same values in blocks. nullopt where they have none: another format, columns in an order of their own, groups or
// columns that no whole block divides, scales of more than 16 bits of mantissa beside a zero, codes that are NaN.
std::optional<Weight> in_blocks(const Weight& weight);

}  // namespace hotswap
