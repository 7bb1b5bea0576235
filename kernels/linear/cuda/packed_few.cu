// Products of up to 4 rows with weights in ggml's blocks (common/gpu/packed_rows.cuh), and whether the device has what
// kernels with such weights need.
#include "kernels/common/gpu/gemv/packed_rows.cuh"
#include "kernels/linear/cuda/linear.h"

namespace linear::cuda {

bool takes_packed_rows() { return kernels::gpu::takes_packed_rows(); }

void packed_few_rows(const kernels::gpu::PackedRows& a, kernels::Stream stream) {
  kernels::gpu::packed_rows(a, stream);
}

}  // namespace linear::cuda
