// Backward of heads of 129 to 192 elements with values of up to 128.
#include "kernels/attention/cuda/sm90_backward_pair_launch.cuh"

namespace attention::gpu {
void backward_192(const Backward& a, void* workspace, Stream stream) { backward_pairs<192, 128>(a, workspace, stream); }
int64_t backward_bytes_192(const Backward& a) { return backward_pairs_bytes<192, 128>(a); }
}  // namespace attention::gpu
