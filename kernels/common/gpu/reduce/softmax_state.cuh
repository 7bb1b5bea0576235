// The state of an online softmax over part of a row, {max, sum}: how elements join it, and how the states of parts
// merge.
#pragma once

#include "kernels/common/gpu/device.cuh"

namespace kernels::gpu {

constexpr float kLog2E = 1.44269504f;

// e^x. Coarse: to 2^-21 or so and 0 below 2^-126, for results that are rounded to 16 bits.
template <bool kCoarse>
__device__ __forceinline__ float softmax_exp(float x) {
  return kCoarse ? exp2_approx(x * kLog2E) : expf(x);
}

__device__ __forceinline__ float finite_or_zero(float max) { return max == -INFINITY ? 0.f : max; }

// What a state's weights are: powers of e, of 2, or of 2 in one instruction (0 below 2^-126).
struct NaturalExp {
  static __device__ __forceinline__ float of(float x) { return expf(x); }
};
struct Exp2 {
  static __device__ __forceinline__ float of(float x) { return exp2f(x); }
};
struct Exp2Approx {
  static __device__ __forceinline__ float of(float x) { return exp2_approx(x); }
};

// The online softmax of the elements seen so far: log sum e^x = max + log(sum). An accumulator of weighted values
// beside it is multiplied by the same weights as the sum.
template <class Exp = NaturalExp>
struct SoftmaxState {
  float max = -INFINITY, sum = 0.f;

  // What this sum is multiplied by where it becomes part of a state whose maximum is `to`.
  __device__ __forceinline__ float weight_at(float to) const { return Exp::of(max - finite_or_zero(to)); }
  __device__ __forceinline__ void merge(const SoftmaxState& other) {
    const float to = fmaxf(max, other.max);
    sum = sum * weight_at(to) + other.sum * other.weight_at(to);
    max = to;
  }
  template <bool kCoarse>
  __device__ __forceinline__ void raise(float to) {
    static_assert(std::is_same_v<Exp, NaturalExp>);
    if (to <= max) return;
    sum *= softmax_exp<kCoarse>(max - to);
    max = to;
  }
  template <bool kCoarse, int N>  // none of them above max
  __device__ __forceinline__ void add(const float (&x)[N]) {
    static_assert(std::is_same_v<Exp, NaturalExp>);
    const float from = finite_or_zero(max);
    float here = 0.f;
#pragma unroll
    for (int i = 0; i < N; ++i) here += softmax_exp<kCoarse>(x[i] - from);
    sum += here;
  }
};

}  // namespace kernels::gpu
