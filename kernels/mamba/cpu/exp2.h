// Powers of two, for states that decay. Compiled once per ISA.
#pragma once

#include "kernels/common/cpu/math.h"

namespace mamba::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// 2^x within 2 ulp, and as near to 1 as x is to 0; 0 below -127, infinity above 128, NaN stays. Fewer instructions than
// exp of math.h: no product with log2 e (rates are multiplied once), and AVX-512 needs no bounds.
HOTSWAP_INLINE F exp2(F x) {
#if HOTSWAP_AVX512
  const F n = (F)_mm512_maskz_roundscale_ps(kAllLanes, (__m512)x, 8);
  const F r = (F)_mm512_maskz_reduce_ps(kAllLanes, (__m512)x, 8);  // 0 where x is infinite
#else
  const F magic = F{} + 12582912.f;  // 1.5 * 2^23: adding rounds
  x = clamp(x, -127.f, 128.f);       // whose powers come out as 0 and infinity below
  const F t = x + magic, n = t - magic, r = x - n;
#endif
  F q = F{} + 0.000153533504f;  // (2^r - 1) / r on |r| <= 1/2: 2e-9 of 2^r
  q = q * r + 0.00133988745f;
  q = q * r + 0.00961843739f;
  q = q * r + 0.0555033247f;
  q = q * r + 0.240226479f;
  q = q * r + 0.693147203f;
  const F p = q * r + 1.f;
#if HOTSWAP_AVX512
  return (F)_mm512_maskz_scalef_ps(kAllLanes, (__m512)p, (__m512)n);
#else
  return p * as_float((bits(t) - bits(magic) + 127u) << 23);
#endif
}

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

}  // namespace mamba::HOTSWAP_ISA
