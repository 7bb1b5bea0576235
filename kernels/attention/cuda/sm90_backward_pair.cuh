// Attention backward for sm_90a of heads of more than 128 elements. As in sm90_backward.cuh keys stay in shared
// memory and walk over the query rows that see them, dk and dv are sums in registers, and dq is added to float32 sums
// in memory; but the keys are those of two blocks, a cluster:
//   - each has dk and dv of 64 keys, which fill its registers;
//   - queries and dout come from L2 once, for both;
//   - they exchange dx, so that each computes half of the columns of dq over the keys of both: half as much is added.
#pragma once

#include "kernels/attention/cuda/sm90_backward_pair_consumer.cuh"
#include "kernels/attention/cuda/sm90_backward_pair_producer.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace attention::gpu {

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1) pair_backward_kernel(const __grid_constant__ BackwardArguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  // Panels begin at multiples of 1024 bytes (wgmma.cuh).
  extern __shared__ __align__(1024) uint8_t raw[];
  if (shared_address(raw) % 1024 != 0) __trap();
  auto& m = *reinterpret_cast<PairMemory<B>*>(raw);
  if (threadIdx.x == 0) {
    prefetch_tensormap(a.q), prefetch_tensormap(a.k), prefetch_tensormap(a.v), prefetch_tensormap(a.dout);
    m.init();
  }
  grid_dependency_wait();
  find_pair_job<B>(a, m);
  __syncthreads();
  const int number = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0);  // so that the compiler knows: a warp agrees
  if (number == 0) {
    setmaxnreg_dec<B::kProducerRegisters>();
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) load_pair_steps<B>(a, m);
    if (a.added != nullptr && 1 <= warp && warp <= B::kConsumers && threadIdx.x % 32 == 0)
      keep_added<B>(a, m, warp - 1);
  } else {
    setmaxnreg_inc<B::kConsumerRegisters>();
    if (number == 1)
      PairConsumer<B, 0>{a, m}.run();
    else
      PairConsumer<B, 1>{a, m}.run();
  }
  cluster_sync();  // the other block may still arrive at this one's barriers
#endif
}

}  // namespace attention::gpu
