// From float32 to ggml's blocks, for the types that are written here; the way back is layers/gguf_blocks.h. Scales are
// searched: of those that are tried, the one of the least squared error as the block is read again, with its scales in
// the precision in which the block keeps them.
#pragma once

#include <cstdint>

#include "hotswap/layers/gguf_blocks.h"

namespace hotswap {

// F32, F16, Q8_0, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K.
bool can_encode(const GgufType& type);

struct EncodeGguf {
  const GgufType& type;
  const float* from;  // [numel], finite
  uint8_t* to;        // numel / block blocks
  int64_t numel;      // a multiple of the block
};
// With torch's threads. A value beyond what the type's scales cut comes back as infinite or NaN: look at what the
// blocks decode to.
void encode(const EncodeGguf& job);

}  // namespace hotswap
