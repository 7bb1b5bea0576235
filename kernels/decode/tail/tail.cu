// The launch of a layer's tail.
#include "kernels/decode/tail/tail.cuh"
#include "kernels/decode/tail/tail.h"

namespace decode::cuda {
namespace {

// Cooperative: all blocks begin together or none does, whatever else runs on the GPU, so that they may wait for each
// other. And set up while the launch before it ends.
template <auto kKernel>
void launch_tail(const Tail& t, kernels::Stream stream) {
  allow_memory<kKernel>();
  cudaLaunchAttribute wanted[2]{};
  wanted[0].id = cudaLaunchAttributeCooperative;
  wanted[0].val.cooperative = 1;
  wanted[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  wanted[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(multiprocessors()));
  config.blockDim = dim3(kTailThreads);
  config.dynamicSmemBytes = size_t(tail_bytes(t));
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = wanted;
  config.numAttrs = 2;
  checked(cudaLaunchKernelEx(&config, kKernel, t), "kernel launch");
}

}  // namespace

bool tail(const Layer& a, kernels::Stream stream) {
  if (attribute<cudaDevAttrComputeCapabilityMajor>() < 9 || attribute<cudaDevAttrCooperativeLaunch>() == 0)
    return false;
  const Tail t = plan_tail(a, multiprocessors(), attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>());
  if (!fits_tail(t)) return false;
  const auto with_type = [&]<class T>() {
    if (a.rows <= 8) return launch_tail<tail_kernel<T, 8>>(t, stream);
    launch_tail<tail_kernel<T, 16>>(t, stream);
  };
  if (a.dtype == DType::kBFloat16)
    with_type.template operator()<kernels::BFloat16>();
  else
    with_type.template operator()<kernels::Half>();
  return true;
}

}  // namespace decode::cuda
