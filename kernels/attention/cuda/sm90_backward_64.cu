// Backward of heads of up to 64 elements.
#include "kernels/attention/cuda/sm90_backward_launch.cuh"

namespace attention::gpu {
void backward_64(const Backward& a, void* workspace, Stream stream) { backward_any<64>(a, workspace, stream); }
int64_t backward_bytes_64(const Backward& a) { return backward_bytes<64>(a); }
}  // namespace attention::gpu
