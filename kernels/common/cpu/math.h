// exp, tanh, sigmoid, erfc for V = float or F (vec.h), log and softplus for F: branch-free, so plain loops over them
// vectorise too. Polynomials are minimax fits (Remez, 40 digits); the errors given are of the fit, before float32
// rounding.
#pragma once

#include "kernels/common/cpu/vec.h"

namespace kernels::HOTSWAP_ISA {

enum class Precision { kFull, kCoarse };  // kCoarse: 1e-4 relative, for what is rounded to bfloat16 anyway
template <class T>
constexpr Precision kPrecisionOf = __is_same(T, BFloat16) ? Precision::kCoarse : Precision::kFull;

// 1 / d for normal, finite d (and NaN).
template <Precision kPrecision = Precision::kFull>
HOTSWAP_INLINE float reciprocal(float d) {
  return 1.f / d;
}
template <Precision kPrecision = Precision::kFull>
HOTSWAP_INLINE F reciprocal(F d) {
#if HOTSWAP_AVX512  // 2^-14, squared by a Newton step: 4 instructions where a division occupies its unit 16 cycles
  const F r = (F)_mm512_maskz_rcp14_ps(kAllLanes, (__m512)d);
  if constexpr (kPrecision == Precision::kCoarse) return r;
  return r + r * (1.f - d * r);
#else
  return 1.f / d;
#endif
}

// p * 2^n, n integral; in two steps, so that subnormal results and infinity come out right.
HOTSWAP_INLINE float scale2(float p, float, uint32_t n) {
  const int32_t k = int32_t(n), half = k >> 1;
  return p * as_float(uint32_t(half + 127) << 23) * as_float(uint32_t(k - half + 127) << 23);
}
HOTSWAP_INLINE F scale2(F p, [[maybe_unused]] F n_float, [[maybe_unused]] U n) {
#if HOTSWAP_AVX512
  return (F)_mm512_maskz_scalef_ps(kAllLanes, (__m512)p, (__m512)n_float);
#else
  const I k = (I)n, half = k >> 1;
  return p * as_float((U)(half + 127) << 23) * as_float((U)(k - half + 127) << 23);
#endif
}
// The same for -126 <= n <= 127.
HOTSWAP_INLINE float scale2_normal(float p, float, uint32_t n) { return p * as_float((n + 127) << 23); }
HOTSWAP_INLINE F scale2_normal(F p, [[maybe_unused]] F n_float, [[maybe_unused]] U n) {
#if HOTSWAP_AVX512
  return (F)_mm512_maskz_scalef_ps(kAllLanes, (__m512)p, (__m512)n_float);
#else
  return p * as_float((n + 127) << 23);
#endif
}

// e^x = p * 2^n, with p in about [0.7, 1.5].
template <class V>
struct ExpParts {
  V p, n;
  typename Lane<V>::Unsigned n_bits;
};
template <Precision kPrecision, class V>
HOTSWAP_INLINE ExpParts<V> exp_parts(V x) {
  const V magic = splat<V>(12582912.f);  // 1.5 * 2^23: adding rounds
  const V t = x * 1.44269504f + magic, n = t - magic;
  V r = x - n * 0.693359375f;  // ln 2 in two parts, the first exact in its product with n
  r = r + n * 2.12194440e-4f;
  V q;                                             // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2
  if constexpr (kPrecision == Precision::kFull) {  // 3e-9
    q = splat<V>(0.00139504904f);
    q = q * r + 0.0083688898f;
    q = q * r + 0.041666206f;
    q = q * r + 0.166665182f;
    q = q * r + 0.5f;
  } else {  // 5e-6
    q = splat<V>(0.0419212133f);
    q = q * r + 0.167539015f;
    q = q * r + 0.49998951f;
  }
  return {q * (r * r) + r + 1.f, n, bits(t) - bits(magic)};
}

// Within 2 ulp; 0 below -104, infinity above 88.73, NaN stays.
template <class V>
HOTSWAP_INLINE V exp(V x) {
  const auto e = exp_parts<Precision::kFull>(clamp(x, -104.f, 89.f));
  return scale2(e.p, e.n, e.n_bits);
}
// log x of normal, positive, finite x, within 2 ulp; NaN stays.
HOTSWAP_INLINE F log(F x) {
  const U from_root = bits(x) - 0x3f3504f3u;  // sqrt(1/2): x = 2^n (1 + f), |f| <= 0.42
  const F n = __builtin_convertvector((I)from_root >> 23, F);
  const F f = as_float((from_root & 0x7fffffu) + 0x3f3504f3u) - 1.f;
  F q = splat<F>(-0.0763450712f);  // (log(1 + f) - f + f^2 / 2) / f^3: 6e-9 of log(1 + f)
  q = q * f + 0.12761579f;
  q = q * f + -0.131601796f;
  q = q * f + 0.142017573f;
  q = q * f + -0.166233569f;
  q = q * f + 0.200012267f;
  q = q * f + -0.250008196f;
  q = q * f + 0.333333313f;
  const F s = f * f;
  const F r = (n * -2.12194440e-4f + (q * f * s - 0.5f * s)) + f + n * 0.693359375f;
  return select((I)(x != x), x, r);
}
// log(1 + e^x), beyond 20 x itself; within 4 ulp. log u * (e / (u - 1)) corrects what e loses in u = 1 + e.
HOTSWAP_INLINE F softplus(F x) {
  const F e = exp(x), u = 1.f + e, lost = u - 1.f;
  const F r = log(u) * (e / select((I)(lost == F{}), F{} + 1.f, lost));
  return select((I)(x > F{} + 20.f), x, select((I)(lost == F{}), e, r));
}
// e^x with x taken as the nearest of [-87, 87]; NaN stays.
template <Precision kPrecision = Precision::kFull, class V>
HOTSWAP_INLINE V exp_within_87(V x) {
  const auto e = exp_parts<kPrecision>(clamp(x, -87.f, 87.f));
  return scale2_normal(e.p, e.n, e.n_bits);
}

// Relative precision in the left tail too; 0 below -87.
template <Precision kPrecision = Precision::kFull, class V>
HOTSWAP_INLINE V sigmoid(V x) {
  const V s = reciprocal<kPrecision>(1.f + exp_within_87<kPrecision>(-x));
  return select(x < splat<V>(-87.f), V{}, s);
}

template <class V>
HOTSWAP_INLINE V tanh(V x) {
  const V a = abs(x), s = x * x;
  V q = splat<V>(-0.00566124357f);  // (tanh(x)/x - 1) / x^2 on |x| <= 0.63: 5e-9
  q = q * s + 0.0206024777f;
  q = q * s + -0.0537294f;
  q = q * s + 0.133313313f;
  q = q * s + -0.333332777f;
  const V small = x + x * (s * q), big = 1.f - 2.f * reciprocal(1.f + exp_within_87(a + a));
  return select(a < splat<V>(0.625f), small, select(x < splat<V>(0.f), -big, big));
}

// The normal distribution's density at x.
template <Precision kPrecision = Precision::kFull, class V>
HOTSWAP_INLINE V normal_density(V x) {
  return 0.398942280f * exp_within_87<kPrecision>(-0.5f * (x * x));
}
// Its integral from -infinity to x, to 1.5e-7 absolute (0.5 (1 + erf(x / sqrt 2)) loses the left tail's relative
// precision as well); 0 below -5.6, where it is less than 1.1e-8. Never coarse: 1e-5 of 1/2 is all of the left tail.
template <class V>
HOTSWAP_INLINE V normal_integral(V x) {
  const V v = clamp(x, -5.6f, 5.6f), s = v * v;
  V p = splat<V>(2.2143404e-08f), q = splat<V>(1.18012561e-06f);  // (integral - 1/2) / x = p / q: 9e-9
  p = p * s + 6.35613648e-06f;
  q = q * s + 7.50980938e-05f;
  p = p * s + 0.000173845f;
  q = q * s + 0.00191295096f;
  p = p * s + 0.00470722667f;
  q = q * s + 0.0289399316f;
  p = p * s + 0.0343759388f;
  q = q * s + 0.252833416f;
  p = p * s + 0.398942222f;
  q = q * s + 1.f;
  const V integral = v * p * reciprocal(q) + 0.5f;
  return select(x < splat<V>(-5.6f), V{}, integral);
}

}  // namespace kernels::HOTSWAP_ISA
