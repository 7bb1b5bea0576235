// Matrix times few vectors on a GPU.
#include "kernels/common/gpu/gemv/few_rows.cuh"
#include "kernels/linear/cuda/linear.h"

namespace linear::cuda {

void few_rows(const kernels::gpu::FewRows& a, kernels::Stream stream) { kernels::gpu::few_rows(a, stream); }

bool few_rows_pay(const kernels::gpu::FewRows& a) {
  return kernels::gpu::few_rows_pay(a, kernels::gpu::multiprocessors());
}

}  // namespace linear::cuda
