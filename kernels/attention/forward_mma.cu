// Forward by mma.sync: its tiles for every size of heads.
#include "kernels/attention/mma_launch.cuh"

namespace attention::gpu {

// kRows, kKeys that keep two blocks a multiprocessor, and fit the 99 KB of sm_86, sm_89 and sm_120.
void mma_forward(const Forward& a, Stream stream) {
  const Problem& p = a.problem;
  const auto at_most = [&](int64_t dim, int64_t value_dim) { return p.dim <= dim && p.value_dim <= value_dim; };
  with_numbers(p, [&]<class T>() {
    if (at_most(64, 64)) return launch_mma_forward<MmaForwardTraits<T, 64, 64, 4, 2, 64>>(a, stream);
    if (at_most(128, 128)) return launch_mma_forward<MmaForwardTraits<T, 128, 128, 4, 2, 64>>(a, stream);
    if (at_most(192, 128)) return launch_mma_forward<MmaForwardTraits<T, 192, 128, 4, 2, 64>>(a, stream);
    if (at_most(256, 256)) return launch_mma_forward<MmaForwardTraits<T, 256, 256, 4, 1, 64>>(a, stream);
    launch_mma_forward<MmaForwardTraits<T, 512, 256, 2, 1, 32>>(a, stream);
  });
}

}  // namespace attention::gpu
