// What TMA does for the convolution: it brings rows into shared memory and takes them away, past registers
// and L1 (docs/notes/mamba.md).
#pragma once

#include "kernels/common/gpu/ptx/tma.cuh"
#include "kernels/mamba/cuda/sm80_conv_four.cuh"

namespace mamba::conv::gpu {

// By one thread, which then starts copies of so many bytes to `full`. What the launch before has written is there.
__device__ __forceinline__ void expect_bytes(Mbarrier& full, int64_t bytes) {
  full.init(1);
  fence_mbarrier_init();
  fence_proxy_async_global();
  full.arrive_expect_tx(uint32_t(bytes));
}

// store_floats, to shared memory.
template <int N, class T>
__device__ __forceinline__ void put_floats(T* to, const float (&f)[N]) {
  const Pack<T, N> v = pack<T>(f);
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T) / 16); ++i)
    reinterpret_cast<uint4*>(to)[i] = make_uint4(v.w[4 * i], v.w[4 * i + 1], v.w[4 * i + 2], v.w[4 * i + 3]);
}

}  // namespace mamba::conv::gpu
