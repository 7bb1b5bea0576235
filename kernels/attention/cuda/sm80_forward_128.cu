// Forward by mma.sync, of queries of up to 192 and values of up to 128 elements. Tiles that keep two blocks a
// multiprocessor, and fit the 99 KB of sm_86, sm_89 and sm_120.
#include "kernels/attention/cuda/sm80_launch.cuh"

namespace attention::gpu {

void mma_forward_128(const Forward& a, Stream stream) {
  const int64_t dim = a.problem.dim, value_dim = a.problem.value_dim;
  with_element_type(a.problem, [&]<class T>() {
    if (dim <= 64 && value_dim <= 64) return launch_mma_forward<MmaForwardTraits<T, 64, 64, 4, 2, 64>>(a, stream);
    if (dim <= 128) return launch_mma_forward<MmaForwardTraits<T, 128, 128, 4, 2, 64>>(a, stream);
    launch_mma_forward<MmaForwardTraits<T, 192, 128, 4, 2, 64>>(a, stream);
  });
}

}  // namespace attention::gpu
