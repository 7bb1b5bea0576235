// Attention backward for sm_90a. A block has 128 keys of one key head, which stay in shared memory with their values,
// and walks over the query rows that see them, of all query heads that share the key head: so dk and dv are sums in
// registers. What it adds to dq goes to float32 sums in memory, which others add to as well.
#pragma once

#include "kernels/attention/cuda/sm90_backward_adder.cuh"
#include "kernels/attention/cuda/sm90_backward_consumer.cuh"
#include "kernels/attention/cuda/sm90_backward_producer.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace attention::gpu {

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1) backward_kernel(const __grid_constant__ BackwardArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  // Panels begin at multiples of 1024 bytes (wgmma.cuh).
  extern __shared__ __align__(1024) uint8_t raw[];
  if (shared_address(raw) % 1024 != 0) __trap();
  auto& m = *reinterpret_cast<BackwardMemory<B>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_tensormap(a.q), prefetch_tensormap(a.k), prefetch_tensormap(a.v), prefetch_tensormap(a.dout);
    m.init();
  }
  find_job<B>(a, m);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<B::kProducerRegisters>();
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0)
      load_steps<B>(a, m);
    else if (1 <= warp && warp <= B::kConsumers && threadIdx.x % 32 == 0)
      add_sums<B>(a, m, warp - 1);
  } else {
    setmaxnreg_inc<B::kConsumerRegisters>();
    BackwardConsumer<B>{a, m}.run();
  }
#endif
}

}  // namespace attention::gpu
