// Forward by mma.sync, of up to 512 elements. Tiles as in sm80_forward_128.cu.
#include "kernels/attention/cuda/sm80_launch.cuh"

namespace attention::gpu {

void mma_forward_512(const Forward& a, Stream stream) {
  const bool of_256 = a.problem.dim <= 256 && a.problem.value_dim <= 256;
  with_element_type(a.problem, [&]<class T>() {
    of_256 ? launch_mma_forward<MmaForwardTraits<T, 256, 256, 4, 1, 64>>(a, stream)
           : launch_mma_forward<MmaForwardTraits<T, 512, 256, 2, 1, 32>>(a, stream);
  });
}

}  // namespace attention::gpu
