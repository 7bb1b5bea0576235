// Backward by mma.sync, of up to 512 elements: dk and dv by two kernels, since registers hold one of them.
#include "kernels/attention/cuda/sm80_launch.cuh"

namespace attention::gpu {
namespace {

template <class T, int kDim, int kWarps, int kOther, int kOtherOfValues>
void backward_of(const Backward& a, float* space, Stream stream) {
  launch_delta<T>(a, space, stream);
  launch_mma_backward<MmaBackwardTraits<T, kDim, kDim, kWarps, 1, kOther, true, true, false>>(a, space, stream);
  launch_mma_backward<MmaBackwardTraits<T, kDim, kDim, kWarps, 1, kOtherOfValues, true, false, true>>(a, space, stream);
  launch_mma_backward<MmaBackwardTraits<T, kDim, kDim, kWarps, 1, kOther, false, true, false>>(a, space, stream);
}

}  // namespace

void mma_backward_512(const Backward& a, float* space, Stream stream) {
  const bool of_256 = a.problem.dim <= 256 && a.problem.value_dim <= 256;
  with_element_type(a.problem, [&]<class T>() {
    of_256 ? backward_of<T, 256, 4, 32, 64>(a, space, stream) : backward_of<T, 512, 2, 16, 16>(a, space, stream);
  });
}

}  // namespace attention::gpu
