// Heads of up to 64 elements: three warpgroups of 64 rows, since the products are short beside the exponentials.
#include "kernels/attention/cuda/sm90_forward_launch.cuh"

namespace attention::gpu {
void forward_64(const Forward& a, int* counter, Stream stream) { forward_any<64, 64, 128, 3>(a, counter, stream); }
}  // namespace attention::gpu
