// Backward of heads of up to 256 elements.
#include "kernels/attention/cuda/sm90_backward_pair_launch.cuh"

namespace attention::gpu {
void backward_256(const Backward& a, void* workspace, Stream stream) { backward_pairs<256, 256>(a, workspace, stream); }
int64_t backward_bytes_256(const Backward& a) { return backward_pairs_bytes<256, 256>(a); }
}  // namespace attention::gpu
