// Launches of the sm_90a backward of wide heads for one size of them.
#pragma once

#include "kernels/attention/cuda/sm90_backward_pair.cuh"
#include "kernels/attention/cuda/sm90_backward_phases.cuh"

namespace attention::gpu {

template <int kDim, int kValueDim>
void backward_pairs(const Backward& a, void* workspace, Stream stream) {
  const auto of = [&]<class B>() {
    launch_backward<B>(a, workspace, stream, [&](const BackwardArguments& arguments, int64_t tiles) {
      launch_after_with_memory<&pair_backward_kernel<B>>(sizeof(PairMemory<B>), B::kBlocks * tiles, B::kThreads,
                                                         B::kBlocks, stream, arguments);
    });
  };
  a.problem.dtype == DType::kBFloat16 ? of.template operator()<PairTraits<BFloat16, kDim, kValueDim>>()
                                      : of.template operator()<PairTraits<Half, kDim, kValueDim>>();
}
template <int kDim, int kValueDim>
int64_t backward_pairs_bytes(const Backward& a) {
  return BackwardSpace::of<PairTraits<BFloat16, kDim, kValueDim>>(a).bytes;
}

}  // namespace attention::gpu
