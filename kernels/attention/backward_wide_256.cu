// Backward of heads of up to 256 numbers, of whole batches.
#include "kernels/attention/backward_wide_launch.cuh"

namespace attention::gpu {
void backward_wide_256(const Backward& a, float* space, Stream stream) {
  backward_wide<256, 256, 64>(a, space, stream);
}
}  // namespace attention::gpu
