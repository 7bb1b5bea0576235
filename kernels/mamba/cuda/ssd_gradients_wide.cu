// Launches of the gradients of state space duality in float32 and float16.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/sm80_ssd_gradients.cuh"

namespace mamba::ssd::gpu {

void gradients_wide(const ssd::Backward& a, const Plan& plan, const Tokens& dy, float* memory, Stream stream) {
  if (a.of.type == DType::kFloat32)
    start_gradients<float, kMaxGpuState, false>(a, plan, dy, memory, stream);
  else
    start_gradients<Half, kMaxGpuState, false>(a, plan, dy, memory, stream);
}

}  // namespace mamba::ssd::gpu
