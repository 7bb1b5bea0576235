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

// The same of logarithms to base 2, x and target: term over log 2, and slope over `slope_unit`.
template <bool kCoarse>
__device__ __forceinline__ float exp2_of(float x) {
  return kCoarse ? exp2_coarse(x) : exp2f(x);
}
template <bool kCoarse>
__device__ __forceinline__ float log2_of(float x) {
  if constexpr (!kCoarse) return log2f(x);
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
constexpr float kLog2 = 0.693147181f;

template <Kind kKind>
__device__ __forceinline__ float slope_unit(float beta) {
  return kKind == Kind::kForward ? -1.f : kKind == Kind::kReverse ? kLog2 : -(1.f - beta) * kLog2;
}
// In mixed ones the larger probability and the quotient of both: two exponentials and a logarithm. `rest`: log2 of the
// mean of both over the larger one.
template <Kind kKind, bool kCoarse>
__device__ __forceinline__ Parts parts_of_log2(float x, float target, float beta) {
  if constexpr (kKind == Kind::kForward) {
    const float p = exp2_of<kCoarse>(target);
    return {zero_where_zero(p, p * (target - x)), p, exp2_of<kCoarse>(x)};
  } else if constexpr (kKind == Kind::kReverse) {
    const float q = exp2_of<kCoarse>(x), term = zero_where_zero(q, q * (x - target));
    return {term, term + q * (1.f / kLog2), q};
  } else {
    const bool more = target >= x;  // the target's is the larger one
    const float above = fmaxf(x, target), apart = fmaxf(fminf(x, target) - above, -200.f);  // 2^-200 is 0
    const float larger = exp2_of<kCoarse>(above), quotient = exp2_of<kCoarse>(apart);
    const float of_smaller = (more ? 1.f - beta : beta) * quotient, m = (more ? beta : 1.f - beta) + of_smaller;
    const float rest = log2_of<kCoarse>(m), q = more ? larger * quotient : larger;
    return {larger * (of_smaller * apart - rest * m), q * (more ? rest - apart : rest), q};
  }
}

// What of a thread's elements is kept until the row's sums are known: slopes over slope_unit() and probabilities e^x;
// and their sums.
template <int kVectors, int N>
struct Slopes {
  float slope[kVectors][N], q[kVectors][N];
  float terms = 0.f, slopes = 0.f;
};

// x and target: log2 of probabilities of vector k, f[N]. has(k): not only blanks, which are -infinity.
template <Kind kKind, bool kCoarse, int kVectors, int N, class Logs, class Has>
__device__ __forceinline__ void fill_slopes(Slopes<kVectors, N>& s, float beta, const Logs& logs, const Has& has) {
  const auto one_by_one = [&] {
    s.terms = s.slopes = 0.f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float x[N], target[N];
      logs(k, x, target);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Parts parts = parts_of_log2<kKind, kCoarse>(x[i], target[i], beta);
        s.terms += parts.term, s.slopes += parts.slope;
        s.slope[k][i] = parts.slope, s.q[k][i] = parts.q;
      }
    }
  };
  if constexpr (kKind != Kind::kMixed || !kCoarse) return one_by_one();
  // p = q 2^apart and m = q ((1 - beta) + beta 2^apart), as long as 2^apart is a number: nothing has to be selected.
  constexpr float kMost = 64.f, kClamp = 126.f;
  float furthest = 0.f, of_target = 0.f;  // sum p log2(p / m)
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float x[N], target[N], far = 0.f;
    logs(k, x, target);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float apart = target[i] - x[i];
      far = fmaxf(far, apart);
      const float near = fminf(apart, kClamp), quotient = exp2_coarse(near), q = exp2_coarse(x[i]);
      const float rest = log2_of<true>(fmaf(beta, quotient, 1.f - beta));  // log2(m / q)
      of_target += q * quotient * (near - rest);
      s.q[k][i] = q, s.slope[k][i] = q * rest;
      s.slopes += s.slope[k][i];
    }
    furthest = has(k) ? fmaxf(furthest, far) : furthest;
  }
  s.terms = beta * of_target - (1.f - beta) * s.slopes;
  if (furthest > kMost) {
    __threadfence_block();  // elements are read again: to have kept them until here would cost registers
    one_by_one();
  }
}

}  // namespace probability::gpu
