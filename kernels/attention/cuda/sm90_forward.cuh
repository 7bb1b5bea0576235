// Attention forward for sm_90a. A block stays on its multiprocessor and computes tile after tile of 64 * consumers
// query rows of one head: one warp loads, warpgroups of 64 rows each compute.
#pragma once

#include "kernels/attention/cuda/sm90_forward_consumer.cuh"
#include "kernels/attention/cuda/sm90_forward_producer.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace attention::gpu {

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1) forward_kernel(const __grid_constant__ ForwardArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  extern __shared__ uint8_t raw[];
  // Panels begin at multiples of 1024 bytes (wgmma.cuh); the launch has asked for as many more.
  auto& m = *reinterpret_cast<ForwardMemory<F>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    prefetch_tensormap(a.q), prefetch_tensormap(a.k), prefetch_tensormap(a.v), prefetch_tensormap(a.out);
    m.init();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<F::kProducerRegisters>();
    if (threadIdx.x < 32) load_tiles<F>(a, m);
  } else {
    setmaxnreg_inc<F::kConsumerRegisters>();
    Consumer<F>{a, m}.run();
  }
#endif
}

}  // namespace attention::gpu
