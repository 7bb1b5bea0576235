// Maxima: of a pack's elements, over the threads of a warp.
#pragma once

#include "kernels/common/gpu/reduce/max.cuh"
#include "kernels/common/gpu/reduce/row_sum.cuh"
#include "kernels/common/gpu/tile/pack.cuh"

namespace kernels::gpu {

// Of a pack's elements.
template <class T, int N>
__device__ __forceinline__ float max_of(const Pack<T, N>& p) {
  if constexpr (N == 8 && std::is_same_v<T, BFloat16>) {  // two at a time
    const auto pair = [&](int i) { return reinterpret_cast<const __nv_bfloat162&>(p.w[i]); };
    const __nv_bfloat162 m = __hmax2(__hmax2(pair(0), pair(1)), __hmax2(pair(2), pair(3)));
    return fmaxf(__low2float(m), __high2float(m));
  } else {
    float f[N];
    unpack(p, f);
    float max = f[0];
#pragma unroll
    for (int i = 1; i < N; ++i) max = fmaxf(max, f[i]);
    return max;
  }
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, o));
  return v;
}
// The same in half the instructions; NaN where one of them is NaN without a sign.
__device__ __forceinline__ float warp_max_by_bits(float v) {
#if __CUDA_ARCH__ >= 800
  const auto ordered = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };  // and back
  return __int_as_float(ordered(__reduce_max_sync(kAllLanes, ordered(__float_as_int(v)))));
#else
  return warp_max(v);
#endif
}
__device__ __forceinline__ float lanes_max(float v, int lanes) {  // lanes: a power of two up to 32; all 32 take part
  for (int o = lanes / 2; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, o));
  return v;
}

}  // namespace kernels::gpu
