// The registry of ggml's types, and for each quantised one a function from bytes, as a GGUF file holds them, to
// float32. Every product there is exact; where a block has a minimum, subtracting it (adding it) is the one rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace hotswap {

struct GgufType {
  uint32_t id;
  const char* name;
  int64_t block;        // weights in a block
  uint64_t block_size;  // its bytes
  // Whole blocks to float32; null: only its name and size are known.
  void (*decode)(const uint8_t* from, float* to, int64_t weights) = nullptr;
  // The same bits by torch's operations, on any device: uint8 [rows, blocks, bytes] -> float32 [rows, blocks, weights].
  // Of the types that stay packed (weight.h).
  at::Tensor (*by_ops)(const at::Tensor& blocks) = nullptr;
};

constexpr int64_t kGgufChunk = 256;  // weights decoded at once: whole blocks of every type

std::span<const GgufType> gguf_types();

}  // namespace hotswap
