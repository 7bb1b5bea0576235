// Host side of TMA (tma.cuh): what a tensor of four dimensions looks like.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/common/dtype.h"

namespace kernels::gpu {

struct TensorShape {
  const void* data;   // a multiple of 16 bytes
  int64_t size[4];    // the first dimension has stride 1
  int64_t stride[4];  // in elements, [0] is 1; multiples of 16 bytes where the dimension has more than one index
  DType dtype;        // of 16 bits
};

// Can TMA take it as it lies?
inline bool fits_tensor_map(const TensorShape& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0 || size_of(t.dtype) != 2) return false;
  for (int i = 1; i < 4; ++i)
    if (t.size[i] > 1 && (t.stride[i] < 0 || t.stride[i] * 2 % 16 != 0 || t.stride[i] >= int64_t{1} << 39))
      return false;
  return true;
}

// cuTensorMapEncodeTiled by way of the runtime: a package is not linked to libcuda, which only machines with a driver
// have.
inline auto tensor_map_encoder() {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || found == nullptr)
      throw std::runtime_error("expected cuTensorMapEncodeTiled of the CUDA driver; got " +
                               std::string(error == cudaSuccess ? "a driver without it" : cudaGetErrorString(error)) +
                               "; install a driver for CUDA 12 or newer");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return encode;
}

// Boxes of `rows` indices of dimension 1 and 64 elements of dimension 0, which lie in shared memory as rows of 128
// bytes, their 16-byte pieces exchanged as wgmma.cuh wants them (piece ^= row % 8).
constexpr int kPanel = 64;  // elements of 16 bits in a box's row
inline CUtensorMap tensor_map(const TensorShape& t, int rows) {
  CUtensorMap map;
  cuuint64_t size[4], stride[3];
  for (int i = 0; i < 4; ++i) size[i] = cuuint64_t(t.size[i]);
  // A dimension of one index may have any stride in torch; TMA checks it all the same.
  for (int i = 1; i < 4; ++i) stride[i - 1] = cuuint64_t(t.size[i] > 1 ? t.stride[i] * 2 : 16);
  const cuuint32_t box[4] = {kPanel, cuuint32_t(rows), 1, 1}, step[4] = {1, 1, 1, 1};
  const CUresult result = tensor_map_encoder()(
      &map, t.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<void*>(t.data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string text = "tensor map: expected sizes and strides that TMA takes; got error " +
                       std::to_string(int(result)) + " for sizes";
    for (const auto n : size) text += " " + std::to_string(n);
    text += ", strides of";
    for (const auto n : stride) text += " " + std::to_string(n);
    throw std::runtime_error(text + " bytes; pass a tensor for which fits_tensor_map is true");
  }
  return map;
}

}  // namespace kernels::gpu
