// Backward of heads of 65 to 128 elements.
#include "kernels/attention/cuda/sm90_backward_launch.cuh"

namespace attention::gpu {
void backward_128(const Backward& a, void* workspace, Stream stream) { backward_any<128>(a, workspace, stream); }
int64_t backward_bytes_128(const Backward& a) { return backward_bytes<128>(a); }
}  // namespace attention::gpu
