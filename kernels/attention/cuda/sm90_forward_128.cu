// Heads of 65 to 128 elements: two warpgroups of 64 rows, 128 keys a tile.
#include "kernels/attention/cuda/sm90_forward_launch.cuh"

namespace attention::gpu {
void forward_128(const Forward& a, int* counter, Stream stream) { forward_any<128, 128, 128, 2>(a, counter, stream); }
}  // namespace attention::gpu
