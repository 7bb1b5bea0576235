// The maximum of a vector's lanes by a tree: one after another they would take as long as a short row's exponentials.
#pragma once

#include "kernels/common/cpu/vec.h"

namespace kernels::HOTSWAP_ISA {

HOTSWAP_INLINE float tree_max(F v) {
#if HOTSWAP_AVX512 || HOTSWAP_AVX2
#if HOTSWAP_AVX512
  const __m256 high = _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd((__m512)v), 1));
  const __m256 w = _mm256_max_ps(_mm512_castps512_ps256((__m512)v), high);
#else
  const __m256 w = (__m256)v;
#endif
  const __m128 h = _mm_max_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  const __m128 q = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
  return max_lane(v);
#endif
}

}  // namespace kernels::HOTSWAP_ISA
