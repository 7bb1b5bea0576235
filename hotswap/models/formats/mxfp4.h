// MXFP4, as checkpoints of gpt-oss hold their experts' weights: 4-bit numbers in blocks of 32 with one scale each.
#pragma once

#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

// Of blocks [experts, rows, groups, 16] uint8, two numbers a byte, the lower half first, and scales [experts, rows,
// groups] uint8 to weights [experts, groups * 32, rows], which transformers keeps transposed. A number is sign, two
// bits of exponent, one of mantissa (0, 0.5, 1, 1.5, 2, 3, 4, 6), a scale 2^(byte - 127). Packed they are as ggml's
// MXFP4 blocks, which kernels read, the same bits in another order.
TensorRule::Decode mxfp4();

}  // namespace hotswap
