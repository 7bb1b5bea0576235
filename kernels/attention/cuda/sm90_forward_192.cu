// Heads of 129 to 192 elements with values of up to 128: latent attention's training and prompts.
#include "kernels/attention/cuda/sm90_forward_launch.cuh"

namespace attention::gpu {
void forward_192(const Forward& a, int* counter, Stream stream) { forward_any<192, 128, 128, 2>(a, counter, stream); }
}  // namespace attention::gpu
