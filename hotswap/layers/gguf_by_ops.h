// ggml's blocks by torch's operations, on whatever device they are: nothing waits for it, and a graph may have it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace hotswap {

// Rows of blocks, uint8 [rows, bytes of `in` weights] -> [rows, in] float32, bit for bit what dequantise() makes
// (gguf_dequant.h). type: Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q5_K or Q6_K, those that stay packed (weight.h).
at::Tensor dequantised_by_ops(const at::Tensor& blocks, const std::string& type, int64_t in);

}  // namespace hotswap
