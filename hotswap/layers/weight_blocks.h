// Weights whose scales stand among their codes: blocks of 32, 64 or 128 columns, each a float32 scale and then its
// codes. Kernels read a weight as one stream of bytes that way, whichever file it comes from (docs/formats.md).
//
// int4_g32, int4_g64, int4_g128: w = (code - zero) * scale, the zero is the scale's low byte; of 32 columns 16 bytes,
// in which column i's code is the low half of byte i, and column 16 + i's the high half. e4m3_g128: w = code * scale,
// codes are float8_e4m3fn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hotswap {

enum class BlockCodes { kInt4, kE4m3 };

struct BlockLayout {
  static constexpr int64_t kScaleBytes = 4, kZero = 255;  // bits of the scale that are the zero's
  static constexpr int64_t kPairs = 16;                   // bytes of 32 columns of two codes each
  BlockCodes codes;
  int64_t columns;
  int64_t code_bytes() const { return codes == BlockCodes::kE4m3 ? columns : columns / 2; }
};

// uint8 [out, bytes of a row] -> [out, in], computed in float32, or in float64 for that, and rounded once.
at::Tensor dequantised_blocks(const at::Tensor& data, const BlockLayout& layout, at::ScalarType dtype);

}  // namespace hotswap
