// Layouts and launches of the selective scan's forward on a GPU.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/mamba_cuda.h"
#include "kernels/mamba/cuda/scan_forward.cuh"
#include "kernels/mamba/cuda/scan_plan.h"

namespace mamba::cuda {

using namespace scan;
using namespace scan::gpu;

// Two share what a lane reads of B and C; one leaves registers for twice the warps.
constexpr int kForwardEach = 2;

void scan_forward(const scan::Forward& a, Stream stream) {
  const scan::Problem& p = a.of;
  if (p.batch * p.channels == 0) return;
  const Along along = along_of(p, {p.u, p.delta, p.z, a.y});
  with_shape<kForwardEach>(p, along, [&]<class T, Along kAlong, class S>() {
    const int64_t blocks = kernels::divide_up(p.channels / p.groups, S::kChannels);
    with_kinds<kAlong>(p, [&]<bool kPacked, bool kConstant>() {
      kernels::gpu::launch_with_memory<&scan::gpu::forward<T, kAlong, S, kPacked, kConstant>>(
          sizeof(ForwardMemory<T, kAlong, S>), p.batch * p.groups * blocks, kThreads, stream, a, blocks,
          token_layouts(p));
    });
  });
}

}  // namespace mamba::cuda
