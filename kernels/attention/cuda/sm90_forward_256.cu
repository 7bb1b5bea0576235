// Heads of up to 256 elements: 80 keys a tile, as many as there is memory for.
#include "kernels/attention/cuda/sm90_forward_launch.cuh"

namespace attention::gpu {
void forward_256(const Forward& a, int* counter, Stream stream) { forward_any<256, 256, 80, 2>(a, counter, stream); }
}  // namespace attention::gpu
