// exp, tanh, sigmoid, erfc for V = float or F (vec.h): branch-free, so plain loops over them vectorise too.
// Polynomials are minimax fits (Remez, 40 digits); the errors given are of the fit, before float32 rounding.
#pragma once

#include "kernels/common/vec.h"

namespace kernels::HOTSWAP_ISA {

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

// Within 2 ulp; 0 below -104, infinity above 88.73, NaN stays.
template <class V>
HOTSWAP_INLINE V exp(V x) {
  const V lo = splat<V>(-104.f), hi = splat<V>(89.f), magic = splat<V>(12582912.f);  // 1.5 * 2^23: adding rounds
  x = select(x < lo, lo, select(x > hi, hi, x));
  const V t = x * 1.44269504f + magic, n = t - magic;
  V r = x - n * 0.693359375f;  // ln 2 in two parts, the first exact in its product with n
  r = r + n * 2.12194440e-4f;
  V q = splat<V>(0.00139504904f);  // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2: 3e-9
  q = q * r + 0.0083688898f;
  q = q * r + 0.041666206f;
  q = q * r + 0.166665182f;
  q = q * r + 0.5f;
  const V p = q * (r * r) + r + 1.f;
  return scale2(p, n, bits(t) - bits(magic));
}

template <class V>
HOTSWAP_INLINE V sigmoid(V x) {
  return 1.f / (1.f + exp(-x));
}

template <class V>
HOTSWAP_INLINE V tanh(V x) {
  const V a = abs(x), s = x * x;
  V q = splat<V>(-0.00566124357f);  // (tanh(x)/x - 1) / x^2 on |x| <= 0.63: 5e-9
  q = q * s + 0.0206024777f;
  q = q * s + -0.0537294f;
  q = q * s + 0.133313313f;
  q = q * s + -0.333332777f;
  const V small = x + x * (s * q), big = 1.f - 2.f / (1.f + exp(a + a));
  return select(a < splat<V>(0.625f), small, select(x < splat<V>(0.f), -big, big));
}

// The normal distribution at x: its density and its integral from -infinity, each to 2e-7 relative, tails included.
template <class V>
struct Normal {
  V density, integral;
};
template <class V>
HOTSWAP_INLINE Normal<V> normal(V x) {
  const V z = abs(x) * 0.707106781f, t = 1.f / (1.f + 0.5f * z);
  V q = splat<V>(-0.0590689555f);  // erfc(z) * exp(z^2) / t: 4.3e-8 relative on 0 <= z <= 10
  q = q * t + 0.284574926f;
  q = q * t + -0.487199813f;
  q = q * t + 0.278067052f;
  q = q * t + -0.0266255792f;
  q = q * t + 0.202686831f;
  q = q * t + 0.243103772f;
  q = q * t + 0.282375306f;
  q = q * t + 0.282086432f;
  const V e = exp(-0.5f * (x * x)), tail = 0.5f * e * t * q;  // 0.5 erfc(z)
  return {e * 0.398942280f, select(x < splat<V>(0.f), tail, 1.f - tail)};
}

template <class V>
HOTSWAP_INLINE V erf(V x) {
  const Normal<V> n = normal(x * 1.41421356f);
  const V s = x * x;  // near zero by its series: 2 * integral - 1 would cancel
  const V small = x * (1.12837917f + s * (-0.376126389f + s * (0.112837917f + s * -0.0268661706f)));
  return select(abs(x) < splat<V>(0.25f), small, 2.f * n.integral - 1.f);
}

}  // namespace kernels::HOTSWAP_ISA
