// Backward by mma.sync, of queries of up to 192 and values of up to 128 elements: dk and dv together.
#include "kernels/attention/cuda/sm80_launch.cuh"

namespace attention::gpu {
namespace {

template <class T, int kDim, int kValueDim, int kQueryBands, int kKeyBands>
void backward_of(const Backward& a, float* space, Stream stream) {
  launch_delta<T>(a, space, stream);
  launch_mma_backward<MmaBackwardTraits<T, kDim, kValueDim, 4, kKeyBands, 32, true, true, true>>(a, space, stream);
  launch_mma_backward<MmaBackwardTraits<T, kDim, kValueDim, 4, kQueryBands, 32, false, true, false>>(a, space, stream);
}

}  // namespace

int64_t mma_backward_bytes(const Backward& a) { return MmaBackwardSpace(a.problem).floats * int64_t{sizeof(float)}; }

void mma_backward_128(const Backward& a, float* space, Stream stream) {
  const int64_t dim = a.problem.dim, value_dim = a.problem.value_dim;
  with_element_type(a.problem, [&]<class T>() {
    if (dim <= 64 && value_dim <= 64) return backward_of<T, 64, 64, 2, 2>(a, space, stream);
    if (dim <= 128) return backward_of<T, 128, 128, 2, 1>(a, space, stream);
    backward_of<T, 192, 128, 1, 1>(a, space, stream);
  });
}

}  // namespace attention::gpu
