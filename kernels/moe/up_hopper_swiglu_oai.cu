// gpt-oss.
#include "kernels/moe/up_hopper.cuh"

namespace moe::gpu {
void up_swiglu_oai(const cuda::Product& a, void* activated, Stream stream) {
  launch_activated<Clamped<true>>(a, activated, stream);
}
}  // namespace moe::gpu
