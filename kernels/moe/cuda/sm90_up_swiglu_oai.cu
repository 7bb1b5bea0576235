// gpt-oss.
#include "kernels/moe/cuda/sm90_up.cuh"

namespace moe::gpu {
void up_swiglu_oai(const cuda::Product& a, void* activated, Stream stream) {
  launch_activated<Clamped<true>>(a, activated, stream);
}
}  // namespace moe::gpu
