// Gated activations on a GPU.
#include "kernels/common/gpu/gated.cuh"
#include "kernels/mlp/mlp_cuda.h"

namespace mlp::cuda {

void gated(const GatedArgs& a, kernels::Stream stream) {
  const kernels::gpu::GatedRows rows{.gate = a.gate,
                                     .up = a.up,
                                     .dy = a.dy,
                                     .y = a.y,
                                     .dgate = a.dgate,
                                     .dup = a.dup,
                                     .gate_stride = a.gate_stride,
                                     .up_stride = a.up_stride,
                                     .dy_stride = a.dy_stride,
                                     .out_stride = a.cols,
                                     .rows = a.rows,
                                     .cols = a.cols,
                                     .dtype = a.dtype};
  if (a.act == GatedAct::kSwiGlu)
    kernels::gpu::launch_gated<kernels::gpu::Silu>(rows, a.dy != nullptr, stream);
  else
    kernels::gpu::launch_gated<kernels::gpu::GeluTanh>(rows, a.dy != nullptr, stream);
}

}  // namespace mlp::cuda
