// silu(gate) value.
#include "kernels/moe/cuda/sm90_up.cuh"

namespace moe::gpu {
void up_swiglu(const cuda::Product& a, void* activated, Stream stream) {
  launch_activated<Gated<Silu>>(a, activated, stream);
}
}  // namespace moe::gpu
