// The terms of divergences and their slopes (probability.h), an element each.
#pragma once

#include "kernels/probability/probability.h"
#include "kernels/probability/rows.cuh"

namespace probability::gpu {

struct Parts {
  float term, slope, q;  // q: e^x, where x is a logarithm
};
__device__ __forceinline__ float zero_where_zero(float probability, float v) { return probability == 0.f ? 0.f : v; }

template <bool kCoarse>
__device__ __forceinline__ float log_of(float x) {
  if constexpr (!kCoarse) return logf(x);
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r * 0.693147181f;
}

// Of the larger probability and the quotient of both: two exponentials and a logarithm. All differences are between the
// logarithms that are given, so that they are as exact as those.
template <bool kCoarse>
__device__ __forceinline__ Parts mixed_parts(float x, float target, float beta) {
  const float apart = fabsf(target - x), quotient = softmax_exp<kCoarse>(-apart);
  const float larger = softmax_exp<kCoarse>(fmaxf(x, target));
  const bool more = target >= x;  // the target's is the larger one
  const float of_larger = more ? beta : 1.f - beta, of_smaller = (1.f - of_larger) * quotient;
  const float m = of_larger + of_smaller;                            // over the larger one
  const float rest = log_of<kCoarse>(m), far = fminf(apart, 3e38f);  // 0 times it is 0
  const float q = more ? larger * quotient : larger;
  const float slope = -(1.f - beta) * q * (rest + (more ? far : 0.f));
  return {larger == 0.f ? 0.f : -larger * (rest * m + of_smaller * far), q == 0.f ? 0.f : slope, q};
}

template <Kind kKind, bool kCoarse>
__device__ __forceinline__ Parts parts_of(float x, float target, float parameter) {
  if constexpr (kKind == Kind::kKl) {
    return {zero_where_zero(target, target * (logf(fmaxf(target, parameter)) - x)), -target, 0.f};
  } else if constexpr (kKind == Kind::kForward) {
    const float p = softmax_exp<kCoarse>(target);
    return {zero_where_zero(p, p * (target - x)), -p, softmax_exp<kCoarse>(x)};
  } else if constexpr (kKind == Kind::kReverse) {
    const float q = softmax_exp<kCoarse>(x), term = zero_where_zero(q, q * (x - target));
    return {term, term + q, q};
  } else if constexpr (kKind == Kind::kMixed) {
    return mixed_parts<kCoarse>(x, target, parameter);
  } else {
    return {0.5f * fabsf(x - target), x > target ? 0.5f : x < target ? -0.5f : 0.f, 0.f};
  }
}

}  // namespace probability::gpu
