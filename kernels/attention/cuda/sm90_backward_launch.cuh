// Launches of the sm_90a backward for one head dimension.
#pragma once

#include "kernels/attention/cuda/sm90_backward.cuh"
#include "kernels/attention/cuda/sm90_backward_phases.cuh"

namespace attention::gpu {

// The kernel for the number type, the windows and the softcap.
template <int kDim>
void backward_any(const Backward& a, void* workspace, Stream stream) {
  const auto of = [&]<class B>() {
    launch_backward<B>(a, workspace, stream, [&](const BackwardArguments& arguments, int64_t tiles) {
      launch_with_memory<&backward_kernel<B>>(sizeof(BackwardMemory<B>), tiles, B::kThreads, stream, arguments);
    });
  };
  const auto with = [&]<class T, bool kLeft>() {
    a.problem.softcap > 0 ? of.template operator()<BackwardTraits<T, kDim, kLeft, true>>()
                          : of.template operator()<BackwardTraits<T, kDim, kLeft, false>>();
  };
  const bool left = a.problem.window_left != kNoLimit, bfloat16 = a.problem.dtype == DType::kBFloat16;
  if (bfloat16)
    left ? with.template operator()<BFloat16, true>() : with.template operator()<BFloat16, false>();
  else
    left ? with.template operator()<Half, true>() : with.template operator()<Half, false>();
}
template <int kDim>
int64_t backward_bytes(const Backward& a) {
  return BackwardSpace::of<BackwardTraits<BFloat16, kDim, false, false>>(a).bytes;
}

}  // namespace attention::gpu
