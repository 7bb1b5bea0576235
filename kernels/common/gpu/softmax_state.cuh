// The state of a softmax over part of a row, {max, sum}: how elements join it, and how the states of parts merge.
#pragma once

#include "kernels/common/gpu/device.cuh"

namespace kernels::gpu {

__device__ __forceinline__ float exp2_coarse(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
constexpr float kLog2E = 1.44269504f;

// e^x. Coarse: to 2^-21 or so and 0 below 2^-126, for results that are rounded to 16 bits.
template <bool kCoarse>
__device__ __forceinline__ float softmax_exp(float x) {
  return kCoarse ? exp2_coarse(x * kLog2E) : expf(x);
}

__device__ __forceinline__ float finite_or_zero(float top) { return top == -INFINITY ? 0.f : top; }

// log sum e^x = top + log(total) of the elements seen so far.
struct SoftmaxState {
  float top = -INFINITY, total = 0.f;

  template <bool kCoarse>
  __device__ __forceinline__ void raise(float to) {
    if (to <= top) return;
    total *= softmax_exp<kCoarse>(top - to);
    top = to;
  }
  template <bool kCoarse, int N>  // none of them above top
  __device__ __forceinline__ void add(const float (&x)[N]) {
    const float from = finite_or_zero(top);
    float here = 0.f;
#pragma unroll
    for (int i = 0; i < N; ++i) here += softmax_exp<kCoarse>(x[i] - from);
    total += here;
  }
  // What total is multiplied by where it becomes part of a whole whose largest is `to`.
  __device__ __forceinline__ float share_at(float to) const { return expf(top - finite_or_zero(to)); }
  __device__ __forceinline__ void merge(const SoftmaxState& other) {
    const float to = fmaxf(top, other.top);
    total = total * share_at(to) + other.total * other.share_at(to);
    top = to;
  }
};

// The largest of a pack's elements.
template <class T, int N>
__device__ __forceinline__ float highest_of(const Pack<T, N>& p) {
  if constexpr (N == 8 && std::is_same_v<T, BFloat16>) {  // two at a time
    const auto pair = [&](int i) { return reinterpret_cast<const __nv_bfloat162&>(p.w[i]); };
    const __nv_bfloat162 m = __hmax2(__hmax2(pair(0), pair(1)), __hmax2(pair(2), pair(3)));
    return fmaxf(__low2float(m), __high2float(m));
  } else {
    float f[N];
    unpack(p, f);
    float highest = f[0];
#pragma unroll
    for (int i = 1; i < N; ++i) highest = fmaxf(highest, f[i]);
    return highest;
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
