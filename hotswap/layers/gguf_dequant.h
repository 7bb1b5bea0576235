// The element types of ggml, and the way back from those that are quantised. Of some a matrix may stay packed in memory
// as it lies in a GGUF file: bytes [out, in / 32 * bytes of a block], uint8.
//
//   F32 F16 BF16    as they are
//   Q8_0            32 weights: float16 d, 32 x int8 q:                                       w = d * q
//   Q4_0            32 weights: float16 d, 16 bytes (low halves are weights 0..15):           w = d * (q - 8)
//   Q4_1            32 weights: float16 d, float16 m, 16 bytes:                               w = d * q + m
//
// Computed in float32 (each d * q is exact there), then rounded once, to nearest even, to the wanted type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace hotswap {

struct GgufType {
  uint32_t id;
  const char* name;
  int64_t block;        // weights in a block
  uint64_t block_size;  // its bytes
};

const GgufType* find_gguf_type(uint32_t id);  // nullptr when unknown; known is more than dequantisable
bool can_dequantise(const GgufType& type);
std::string dequantisable_types();

struct Dequantise {
  const GgufType& type;
  const uint8_t* from;   // [numel / block] blocks, any alignment
  void* to;              // [numel]
  at::ScalarType dtype;  // of `to`: float32, bfloat16, float16
  int64_t numel;         // a multiple of the block
};
void dequantise(const Dequantise& job);  // with torch's threads

// May a matrix of this type stay packed? Q8_0, Q4_0 and Q4_1.
bool stays_packed(const GgufType& type);
// The type of packed rows of `in` weights: the bytes of a row decide. Error where no type has such rows.
const GgufType& packed_type_of(const at::Tensor& packed, int64_t in);
// Packed rows of `in` weights -> [rows, in]. float64 too.
at::Tensor dequantised(const at::Tensor& packed, int64_t in, at::ScalarType dtype);

}  // namespace hotswap
