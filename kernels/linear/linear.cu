// Matrix times few vectors on a GPU.
#include "kernels/common/gpu/few_rows.cuh"
#include "kernels/linear/linear_cuda.h"

namespace linear::cuda {

void few_rows(const kernels::gpu::FewRows& a, kernels::Stream stream) { kernels::gpu::few_rows(a, stream); }

}  // namespace linear::cuda
