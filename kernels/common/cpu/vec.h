// Vectors of floats at the width of the ISA, on the compiler's vector extension: F, I, U hold kLanes numbers.
// load/store convert float, bfloat16 and float16 memory; addresses may be misaligned. The Count argument says how many
// lanes are there: All, or Part{n} at the end of a row. sweep() walks a row with both.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kernels::HOTSWAP_ISA {

#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define HOTSWAP_AVX512 1
constexpr int kVecBytes = 64;
#elif defined(__AVX2__)
#define HOTSWAP_AVX2 1
constexpr int kVecBytes = 32;
#else
constexpr int kVecBytes = 16;
#endif
constexpr int kLanes = kVecBytes / 4;

typedef float F __attribute__((vector_size(kVecBytes)));
typedef int32_t I __attribute__((vector_size(kVecBytes)));
typedef uint32_t U __attribute__((vector_size(kVecBytes)));
typedef uint16_t U16 __attribute__((vector_size(kVecBytes / 2)));

// The same names for one number, so that math.h serves vectors and plain loops alike.
template <class V>
struct Lane {
  using Int = I;
  using Unsigned = U;
};
template <>
struct Lane<float> {
  using Int = int32_t;
  using Unsigned = uint32_t;
};

HOTSWAP_INLINE U bits(F v) { return (U)v; }
HOTSWAP_INLINE F as_float(U v) { return (F)v; }
HOTSWAP_INLINE uint32_t bits(float v) { return __builtin_bit_cast(uint32_t, v); }
HOTSWAP_INLINE float as_float(uint32_t v) { return __builtin_bit_cast(float, v); }
HOTSWAP_INLINE F select(I mask, F a, F b) { return mask ? a : b; }
HOTSWAP_INLINE U select(I mask, U a, U b) { return mask ? a : b; }
HOTSWAP_INLINE float select(bool mask, float a, float b) { return mask ? a : b; }
HOTSWAP_INLINE uint32_t select(bool mask, uint32_t a, uint32_t b) { return mask ? a : b; }
template <class V>
HOTSWAP_INLINE V splat(float v) {
  return V{} + v;
}
template <class V>
HOTSWAP_INLINE V abs(V v) {
  return as_float(bits(v) & 0x7fffffffu);
}

// bfloat16, round to nearest even, NaN stays NaN: the number in the upper 16 bits, anything in the lower.
template <class V>
HOTSWAP_INLINE auto bf16_high(V v) {
  const auto u = bits(v);
  return select(v != v, u | 0x400000u, u + 0x7fffu + ((u >> 16) & 1u));
}
#if HOTSWAP_AVX512
constexpr __mmask16 kAllLanes = 0xffff;  // maskz forms: g++ 12 warns about the others' undefined operand
HOTSWAP_INLINE U bf16_high(F v) {        // the same with mask registers: 5 instructions for 7
  const __m512i u = (__m512i)v, half = (__m512i)((U)v + 0x7fffu), one = (__m512i)(U{} + 1u);
  const __m512i r = _mm512_mask_add_epi32(half, _mm512_test_epi32_mask(u, (__m512i)(U{} + 0x10000u)), half, one);
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  return (U)_mm512_mask_or_epi32(r, nan, u, (__m512i)(U{} + 0x400000u));
}
#endif

// float16 by integers where there is no F16C: normal, subnormal (through a float addition that rounds), infinite, NaN.
template <class V>
HOTSWAP_INLINE auto fp16_bits(V v) {
  const auto u = bits(v), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
  const auto magic = bits(splat<V>(0.5f));  // 0.5 has the exponent that puts 2^-24 at the last bit
  const auto tiny = bits(as_float(m) + as_float(magic)) - magic;
  const auto normal = (m - (112u << 23) + 0xfffu + ((m >> 13) & 1u)) >> 13;
  const auto a = abs(v);
  auto r = select(a < splat<V>(6.103515625e-5f), tiny, normal);
  r = select(a >= splat<V>(65520.f), 0x7c00u + 0u * u, r);
  return sign | select(v != v, 0x7e00u + 0u * u, r);
}
template <class W>
HOTSWAP_INLINE auto fp16_float(W h) {  // h: 16 bits each in 32
  const auto m = (h & 0x7fffu) << 13, exponent = m & (0x7c00u << 13);
  auto u = m + (112u << 23);
  u = select(exponent == (0x7c00u << 13) + 0u * h, u + (112u << 23), u);
  const auto tiny = bits(as_float(m + (113u << 23)) - as_float((113u << 23) + 0u * h));
  u = select(exponent == 0u * h, tiny, u);
  return as_float(u | ((h & 0x8000u) << 16));
}

HOTSWAP_INLINE float to_float(float v) { return v; }
HOTSWAP_INLINE float to_float(BFloat16 v) { return as_float(uint32_t(v.bits) << 16); }
HOTSWAP_INLINE float to_float(Half v) { return fp16_float(uint32_t(v.bits)); }
template <class T>
HOTSWAP_INLINE T from_float(float v) {
  if constexpr (__is_same(T, float))
    return v;
  else if constexpr (__is_same(T, BFloat16))
    return {uint16_t(bf16_high(v) >> 16)};
  else
    return {uint16_t(fp16_bits(v))};
}

struct All {};
struct Part {
  int n;
};

// ---- 16-bit lanes to 32-bit lanes and back
HOTSWAP_INLINE U widen(const uint16_t* p) {
#if HOTSWAP_AVX512
  return (U)_mm512_maskz_cvtepu16_epi32(kAllLanes, _mm256_loadu_si256((const __m256i*)p));
#elif HOTSWAP_AVX2
  return (U)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__SSE2__)
  return (U)_mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i*)p), _mm_setzero_si128());
#else
  U16 h;
  __builtin_memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, U);
#endif
}
HOTSWAP_INLINE U16 narrow(U v) {  // v < 2^16
#if HOTSWAP_AVX512
  return (U16)_mm512_maskz_cvtepi32_epi16(kAllLanes, (__m512i)v);
#elif HOTSWAP_AVX2
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (U16)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#elif defined(__SSE2__)
  const __m128i s = _mm_srai_epi32(_mm_slli_epi32((__m128i)v, 16), 16);  // packs saturates signed numbers only
  typedef long long Two __attribute__((vector_size(16)));
  return __builtin_bit_cast(U16, ((Two)_mm_packs_epi32(s, s))[0]);
#else
  return __builtin_convertvector(v, U16);
#endif
}

// The upper 16 bits of each lane.
HOTSWAP_INLINE U16 narrow_high(U v) {
#if HOTSWAP_AVX512
  typedef uint16_t Words __attribute__((vector_size(64)));
  const Words odd = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return (U16)_mm512_castsi512_si256(_mm512_maskz_permutexvar_epi16(~0u, (__m512i)odd, (__m512i)v));
#elif !HOTSWAP_AVX2 && defined(__SSE2__)
  const __m128i s = _mm_srai_epi32((__m128i)v, 16);  // packs saturates signed numbers only
  typedef long long Two __attribute__((vector_size(16)));
  return __builtin_bit_cast(U16, ((Two)_mm_packs_epi32(s, s))[0]);
#else
  return narrow(v >> 16);
#endif
}

HOTSWAP_INLINE F load(const float* p, All = {}) {
  F v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
HOTSWAP_INLINE F load(const BFloat16* p, All = {}) { return as_float(widen(&p->bits) << 16); }
HOTSWAP_INLINE F load(const Half* p, All = {}) {
#if HOTSWAP_AVX512
  return (F)_mm512_maskz_cvtph_ps(kAllLanes, _mm256_loadu_si256((const __m256i*)p));
#elif HOTSWAP_AVX2
  return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  return fp16_float(widen(&p->bits));
#endif
}

// The lanes of v as T's bits, in the register that is stored.
HOTSWAP_INLINE F pack(F v, const float*) { return v; }
HOTSWAP_INLINE U16 pack(F v, const BFloat16*) { return narrow_high(bf16_high(v)); }
HOTSWAP_INLINE U16 pack(F v, const Half*) {
#if HOTSWAP_AVX512
  return (U16)_mm512_maskz_cvtps_ph(kAllLanes, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif HOTSWAP_AVX2
  return (U16)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#else
  return narrow(fp16_bits(v));
#endif
}
template <class T>
HOTSWAP_INLINE void store(T* p, F v, All = {}) {
  const auto packed = pack(v, p);
  __builtin_memcpy(p, &packed, sizeof packed);
}

// v as it would be after being stored as T and loaded again.
HOTSWAP_INLINE F round_to(F v, const float*) { return v; }
HOTSWAP_INLINE F round_to(F v, const BFloat16*) { return as_float(bf16_high(v) & 0xffff0000u); }
HOTSWAP_INLINE F round_to(F v, const Half* p) {
  const auto packed = pack(v, p);
  return load((const Half*)&packed);
}
template <class T>
HOTSWAP_INLINE F rounded(F v) {
  return round_to(v, (const T*)nullptr);
}

template <class T>
HOTSWAP_INLINE F load(const T* p, Part part) {
#if HOTSWAP_AVX512
  if constexpr (sizeof(T) == 4) {
    return (F)_mm512_maskz_loadu_ps((__mmask16)((1u << part.n) - 1), p);
  } else {
    const __m256i raw = _mm256_maskz_loadu_epi16((__mmask16)((1u << part.n) - 1), p);
    return load((const T*)&raw);
  }
#else
  T full[kLanes] = {};
  for (int i = 0; i < part.n; ++i) full[i] = p[i];
  return load(full);
#endif
}
template <class T>
HOTSWAP_INLINE void store(T* p, F v, Part part) {
  const auto packed = pack(v, p);
#if HOTSWAP_AVX512
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << part.n) - 1), (__m512)packed);
  } else {
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << part.n) - 1), (__m256i)packed);
  }
#else
  T full[kLanes];
  __builtin_memcpy(full, &packed, sizeof packed);
  for (int i = 0; i < part.n; ++i) p[i] = full[i];
#endif
}
// Lanes past the end become zero: sums over a row need no special case.
HOTSWAP_INLINE F keep(F v, All) { return v; }
HOTSWAP_INLINE F keep(F v, Part part) {
  float full[kLanes];
  __builtin_memcpy(full, &v, sizeof v);
  for (int i = part.n; i < kLanes; ++i) full[i] = 0.f;
  return load(full);
}

// A tree: the order is fixed and short, and stays in registers (through memory it costs five times as much).
HOTSWAP_INLINE float sum(F v) {
#if HOTSWAP_AVX512 || HOTSWAP_AVX2
#if HOTSWAP_AVX512
  // AVX-512F alone has no extract of eight floats; of four doubles it has
  const __m256 high = _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd((__m512)v), 1));
  const __m256 w = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), high);
#else
  const __m256 w = (__m256)v;
#endif
  const __m128 h = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  const __m128 q = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#elif defined(__SSE2__)
  const __m128 h = (__m128)v, q = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}
// The nearest of [lo, hi]; NaN stays.
HOTSWAP_INLINE float clamp(float v, float lo, float hi) { return v < lo ? lo : v > hi ? hi : v; }
HOTSWAP_INLINE F clamp(F v, float lo, float hi) {
  const F l = F{} + lo, h = F{} + hi;
#if HOTSWAP_AVX512  // the second operand is the result where one is NaN
  return (F)_mm512_maskz_min_ps(kAllLanes, (__m512)h, _mm512_maskz_max_ps(kAllLanes, (__m512)l, (__m512)v));
#else
  return v < l ? l : (v > h ? h : v);
#endif
}
HOTSWAP_INLINE F max(F a, F b) { return a > b ? a : b; }
HOTSWAP_INLINE float max_lane(F v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

// fn(i, count) for i = 0, kLanes, ... < n; count is All, at the end Part. Mark fn HOTSWAP_LAMBDA.
template <class Fn>
HOTSWAP_INLINE void sweep(int64_t n, Fn fn) {
  int64_t i = 0;
#pragma GCC unroll 2
  for (; i + kLanes <= n; i += kLanes) fn(i, All{});
  if (i < n) fn(i, Part{int(n - i)});
}

// Sum over a row of term(i, count) -> F in four independent accumulators: one would wait for its own last addition.
template <class Fn>
HOTSWAP_INLINE float sweep_sum(int64_t n, Fn term) {
  F s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 += term(i, All{});
    s1 += term(i + kLanes, All{});
    s2 += term(i + 2 * kLanes, All{});
    s3 += term(i + 3 * kLanes, All{});
  }
  for (; i + kLanes <= n; i += kLanes) s0 += term(i, All{});
  if (i < n) s1 += term(i, Part{int(n - i)});
  return sum((s0 + s1) + (s2 + s3));
}

}  // namespace kernels::HOTSWAP_ISA
