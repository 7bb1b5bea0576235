// The element types of ggml, in one registry, and the way back from those that are quantised (gguf_blocks.h): computed
// in float32, then rounded once, to nearest even, to the wanted type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "hotswap/layers/gguf_blocks.h"

namespace hotswap {

const GgufType* find_gguf_type(uint32_t id);              // nullptr when unknown
const GgufType* find_gguf_type(const std::string& name);  // the same
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

// Rows of blocks, uint8 [rows, bytes of `in` weights] -> [rows, in]. float64 too.
at::Tensor dequantised(const at::Tensor& blocks, const GgufType& type, int64_t in, at::ScalarType dtype);

}  // namespace hotswap
