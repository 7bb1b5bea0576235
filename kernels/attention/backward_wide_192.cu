// Backward of heads of 129 to 192 numbers with values of up to 128, of whole batches.
#include "kernels/attention/backward_wide_launch.cuh"

namespace attention::gpu {
void backward_wide_192(const Backward& a, float* space, Stream stream) {
  backward_wide<192, 128, 64>(a, space, stream);
}
}  // namespace attention::gpu
