#include "kernels/common/gpu/gemv/packed_rows.cuh"
#include "kernels/decode/cuda/decode.h"

namespace decode::cuda {

bool takes_packed_rows() { return kernels::gpu::takes_packed_rows(); }

void packed_product(const kernels::gpu::PackedRows& a, kernels::Stream stream) { kernels::gpu::packed_rows(a, stream); }

}  // namespace decode::cuda
