// Matrices in memory as torch's own GEMMs (MKL, oneDNN, cuBLAS) take them.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include "kernels/common/torch/binding.h"

namespace kernels {

// A strided [rows, cols] window of memory. As a tensor it costs no dispatcher call and carries no autograd history.
struct Window {
  void* data;
  int64_t rows, cols, row_stride, col_stride = 1;

  Window transposed() const { return {data, cols, rows, col_stride, row_stride}; }
  Tensor tensor(DType dtype, const Device& device = cpu()) const {
    const std::array<int64_t, 2> sizes = {rows, cols}, strides = {row_stride, col_stride};
    AtenTensorHandle handle;
    TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(data, 2, sizes.data(), strides.data(), 0,
                                                              torch_dtype(dtype), device.type,
                                                              device.is_cpu() ? 0 : device.index, &handle));
    return Tensor(handle);
  }
};

// On the CPU, out = alpha a @ b + beta add; add is broadcast, and not read where beta is 0.
inline void multiply(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& add, double beta,
                     double alpha) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(out.get(), add.get(), a.get(), b.get(), beta, alpha));
}

}  // namespace kernels
