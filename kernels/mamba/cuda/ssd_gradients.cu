// Launches of the gradients of state space duality in bfloat16; the wider types' are in ssd_gradients_wide.cu.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/mamba/cuda/sm80_ssd_gradients.cuh"

namespace mamba::ssd::gpu {

void gradients_wide(const ssd::Backward& a, const Plan& plan, const Tokens& dy, float* memory, Stream stream);

void gradients(const ssd::Backward& a, const Plan& plan, const Tokens& dy, float* memory, Stream stream) {
  if (items_of(a.of, plan) == 0) return;
  if (a.of.type != DType::kBFloat16)
    gradients_wide(a, plan, dy, memory, stream);
  else if (a.of.state > 128)
    start_gradients<BFloat16, kMaxGpuState, false>(a, plan, dy, memory, stream);
  else if (is_plain(a.of, {a.of.x, dy, a.dx}))
    start_gradients<BFloat16, 128, true>(a, plan, dy, memory, stream);
  else
    start_gradients<BFloat16, 128, false>(a, plan, dy, memory, stream);
}

}  // namespace mamba::ssd::gpu
