// Gated activations on a GPU.
#include "kernels/common/gpu/tile/gated.cuh"
#include "kernels/mlp/cuda/mlp.h"

namespace mlp::cuda {
namespace {

using kernels::gpu::Gated;

template <class Act>
void launch(const kernels::gpu::GatedRows& rows, kernels::Stream stream) {
  if (rows.dy == nullptr)
    kernels::gpu::launch_gated<Act, Gated::kForward>(rows, stream);
  else if (rows.y == nullptr)
    kernels::gpu::launch_gated<Act, Gated::kBackward>(rows, stream);
  else
    kernels::gpu::launch_gated<Act, Gated::kBoth>(rows, stream);
}

}  // namespace

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
    launch<kernels::gpu::Silu>(rows, stream);
  else
    launch<kernels::gpu::GeluTanh>(rows, stream);
}

}  // namespace mlp::cuda
