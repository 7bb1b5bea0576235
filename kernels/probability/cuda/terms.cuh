// The terms of divergences and their slopes (probability.h), an element each.
#pragma once

#include "kernels/probability/cuda/rows.cuh"
#include "kernels/probability/probability.h"

namespace probability::gpu {

struct Parts {
  float term, slope, q;  // q: e^x, where x is a logarithm
};
__device__ __forceinline__ float zero_where_zero(float probability, float v) { return probability == 0.f ? 0.f : v; }

template <bool kCoarse>
__device__ __forceinline__ float log_of(float x) {
  if constexpr (!kCoarse) return logf(x);
  return log2_approx(x) * 0.693147181f;
}

// Of the larger probability and the quotient of both: two exponentials and a logarithm. All differences are between the
// logarithms that are given, so that they are as exact as those.
template <bool kCoarse>
__device__ __forceinline__ Parts mixed_parts(float x, float target, float beta) {
  const float apart = fabsf(target - x), quotient = softmax_exp<kCoarse>(-apart);
  const float larger = softmax_exp<kCoarse>(fmaxf(x, target));
  const bool more = target >= x;  // the target's is the larger one
  const float of_larger = more ? beta : 1.f - beta, of_smaller = (1.f - of_larger) * quotient;
  const float m = of_larger + of_smaller;                                   // over the larger one
  const float rest = log_of<kCoarse>(m), far = fminf(apart, 3e38f);         // 0 times it is 0
  const float q = larger == 0.f ? 0.f : more ? larger * quotient : larger;  // where both are 0, their quotient is NaN
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

// To base 2.
template <bool kCoarse>
__device__ __forceinline__ float exp2_of(float x) {
  return kCoarse ? exp2_approx(x) : exp2f(x);
}
template <bool kCoarse>
__device__ __forceinline__ float log2_of(float x) {
  if constexpr (!kCoarse) return log2f(x);
  return log2_approx(x);
}
constexpr float kLog2 = 0.693147181f;

template <Kind kKind>
__device__ __forceinline__ float slope_unit(float beta) {
  return kKind == Kind::kForward ? -1.f : kKind == Kind::kReverse ? kLog2 : -(1.f - beta) * kLog2;
}

// What of a thread's elements is kept until the row's sums are known: probabilities q = 2^x, and slopes over
// slope_unit(); and their sums, of terms over log 2.
template <int kVectors, int N>
struct Slopes {
  float q[kVectors][N], slope[kVectors][N];
  float terms = 0.f, slopes = 0.f;
};

// of(k, i) -> OfBoth of element i of vector k. apart: log2 of the target's probability p over q, infinite where one of
// both is 0 and NaN where both are.
struct OfBoth {
  float apart, q, p;
};
// kByQuotient: p is q 2^apart where that is a number, and of() need not make it: an exponential less. Else it is p.
template <Kind kKind, bool kCoarse, bool kByQuotient, int kVectors, int N, class Of>
__device__ __forceinline__ void fill_slopes(Slopes<kVectors, N>& s, float beta, const Of& of) {
  constexpr bool kMixed = kKind == Kind::kMixed;
  const auto fill = [&]<bool kQuotient>(std::bool_constant<kQuotient>) {
    float terms = 0.f, slopes = 0.f, furthest = 0.f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const auto [apart, q, p] = of(k, i);
        float slope;
        if constexpr (kKind == Kind::kForward) {
          terms += zero_where_zero(p, p * apart), slope = p;
        } else if constexpr (kKind == Kind::kReverse) {
          const float term = zero_where_zero(q, -q * apart);
          terms += term, slope = term + q * (1.f / kLog2);
        } else if constexpr (kCoarse) {  // m = q ((1 - beta) + beta 2^apart)
          float near = fmaxf(apart, -126.f);
          if constexpr (kQuotient)
            furthest = fmaxf(furthest, near);
          else
            near = fminf(near, 126.f);  // beyond, p / m and q / m are 1 / beta and 0
          const float quotient = exp2_approx(near);
          const float rest = log2_of<true>(fmaf(beta, quotient, 1.f - beta));  // log2(m / q)
          terms += (kQuotient ? q * quotient : p) * (near - rest), slope = q * rest;
        } else {  // the same of the larger one of both, so that no logarithm is a difference of large ones
          const float near = fminf(fmaxf(apart, -200.f), 200.f);  // 2^-200 is 0
          const float of_larger = near >= 0.f ? beta : 1.f - beta;
          const float rest = log2f(fmaf(1.f - of_larger, exp2f(-fabsf(near)), of_larger));
          terms += p * (fminf(near, 0.f) - rest), slope = q * (rest + fmaxf(near, 0.f));
        }
        slopes += slope;
        s.q[k][i] = q, s.slope[k][i] = slope;
      }
    }
    s.slopes = slopes, s.terms = kMixed ? beta * terms - (1.f - beta) * slopes : terms;
    return furthest;
  };
  if constexpr (kMixed && kCoarse && kByQuotient) {
    constexpr float kMax = 64.f;
    if (fill(std::true_type{}) <= kMax) return;
    __threadfence_block();  // elements are read again: to have kept them until here would cost registers
  }
  fill(std::false_type{});
}

}  // namespace probability::gpu
