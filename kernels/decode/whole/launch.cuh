// The launch of layer.cuh's kernel for a dtype.
#pragma once

#include "kernels/decode/whole/layer.cuh"
#include "kernels/decode/whole/whole.h"

namespace decode::cuda {

// Cooperative: all blocks begin together or none does, whatever else runs on the GPU, so that they may wait for each
// other. And set up while the launch before it ends.
template <auto kKernel>
void launch_whole(const Whole& w, kernels::Stream stream) {
  allow_memory<kKernel>();
  cudaLaunchAttribute wanted[2]{};
  wanted[0].id = cudaLaunchAttributeCooperative;
  wanted[0].val.cooperative = 1;
  wanted[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  wanted[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(multiprocessors()));
  config.blockDim = dim3(kWholeThreads);
  config.dynamicSmemBytes = size_t(whole_bytes(w));
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = wanted;
  config.numAttrs = 2;
  checked(cudaLaunchKernelEx(&config, kKernel, w), "kernel launch");
}

template <class T>
void launch_dtype(const Whole& w, kernels::Stream stream) {
  const auto with_heads = [&]<int kRows, bool kTold, int kDim>() {
    if (w.a.heads / w.a.kv_heads <= 2) return launch_whole<layer_kernel<T, kRows, kDim, 2, kTold>>(w, stream);
    launch_whole<layer_kernel<T, kRows, kDim, kWholeGroup, kTold>>(w, stream);
  };
  const auto with_rows = [&]<int kRows, bool kTold>() {
    if (w.a.head_dim == 64) return with_heads.template operator()<kRows, kTold, 64>();
    with_heads.template operator()<kRows, kTold, 128>();
  };
  if (w.told) return with_rows.template operator()<8, true>();
  if (w.a.rows <= 8) return with_rows.template operator()<8, false>();
  with_rows.template operator()<16, false>();
}

}  // namespace decode::cuda
