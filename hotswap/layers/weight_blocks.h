// Weights whose scales stand among their codes: blocks of 32, 64 or 128 columns, each a float32 scale and then its
// codes. Kernels read a weight as one stream of bytes that way, whichever file it comes from (docs/formats.md).
//
//   int4_g32, _g64, _g128   the scale's low byte is the zero; for each 32 columns 16 bytes: column i's code is the low
//                           half of byte i, column 16 + i's the high half        w = (code - zero) * scale
//   e4m3_g128               float8_e4m3fn                                         w = code * scale
#pragma once

#include "hotswap/layers/weight.h"

namespace hotswap {

bool is_block_format(WeightFormat format);

// The same values in blocks. nullopt where they have none: another format, columns in an order of their own, groups or
// columns that no whole block divides, scales of more than 16 bits of mantissa beside a zero, codes that are NaN.
std::optional<Weight> in_blocks(const Weight& weight);

// [out, in] of a weight in blocks, computed in float32, or in float64 for that, and rounded once.
Tensor dequantised_blocks(const Weight& weight, at::ScalarType dtype);

}  // namespace hotswap
