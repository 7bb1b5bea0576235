// The weights of a packed block as float32: what the block means. The scale times the code is exact there, and a
// minimum is added with one rounding, as in the dequantised form.
// Included by files that are compiled once per ISA.
#pragma once

#include "kernels/common/cpu/out_of_line.h"
#include "kernels/common/cpu/vec.h"
#include "kernels/common/packing.h"

namespace kernels::HOTSWAP_ISA {

constexpr int kHalf = 16 / kLanes;  // vectors of half a block

HOTSWAP_INLINE F half_everywhere(const uint8_t* p) {
  Half h;
  __builtin_memcpy(&h, p, sizeof h);
#if HOTSWAP_AVX512
  return (F)_mm512_maskz_cvtph_ps(kAllLanes, _mm256_set1_epi16((short)h.bits));
#elif HOTSWAP_AVX2
  return (F)_mm256_cvtph_ps(_mm_set1_epi16((short)h.bits));
#else
  return splat<F>(to_float(h));
#endif
}

typedef int8_t Bytes __attribute__((vector_size(kLanes)));
HOTSWAP_INLINE I bytes_at(const uint8_t* p) {  // as signed numbers
#if HOTSWAP_AVX512
  return (I)_mm512_maskz_cvtepi8_epi32(kAllLanes, _mm_loadu_si128((const __m128i*)p));
#elif HOTSWAP_AVX2
  return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, I);
#endif
}

// Bits [from, from + count) of kLanes bytes.
template <int kCount>
HOTSWAP_INLINE I bits_of_bytes(const uint8_t* p, int from) {
  return (bytes_at(p) >> from) & ((1 << kCount) - 1);
}

// w = d q + m of the 16 codes of four bits that there are.
struct FourBits {
#if HOTSWAP_AVX512
  F table;  // looked up by the lowest four bits of each lane
#else
  F d, m;
#endif
};
HOTSWAP_INLINE FourBits four_bits(F d, F m) {
#if HOTSWAP_AVX512
  const F count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return {d * count + m};
#else
  return {d, m};
#endif
}

// Of 16 bytes: kHalf vectors of the low halves, kHalf of the high ones.
HOTSWAP_INLINE void unpack_pairs(const uint8_t* q, const FourBits& of, F (&w)[2 * kHalf]) {
#if HOTSWAP_AVX512
  const I both = bytes_at(q);
  w[0] = (F)_mm512_maskz_permutexvar_ps(kAllLanes, (__m512i)both, (__m512)of.table);
  w[1] = (F)_mm512_maskz_permutexvar_ps(kAllLanes, (__m512i)(both >> 4), (__m512)of.table);
#else
  for (int i = 0; i < kHalf; ++i) {
    const I both = bytes_at(q + i * kLanes);
    w[i] = of.d * __builtin_convertvector(both & 15, F) + of.m;
    w[kHalf + i] = of.d * __builtin_convertvector((both >> 4) & 15, F) + of.m;
  }
#endif
}

template <Packing kPacking>
HOTSWAP_INLINE void unpack_q4(const uint8_t* p, F (&w)[2 * kHalf]) {
  constexpr bool kMinimum = kPacking == Packing::kQ4_1;
  const F d = half_everywhere(p), m = kMinimum ? half_everywhere(p + 2) : -8.f * d;
  unpack_pairs(p + (kMinimum ? 4 : 2), four_bits(d, m), w);
}

HOTSWAP_INLINE void unpack_q5_0(const uint8_t* p, F (&w)[2 * kHalf]) {
  const F d = half_everywhere(p);
  uint32_t fifths;
  __builtin_memcpy(&fifths, p + 2, sizeof fifths);
  I lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (int i = 0; i < 2 * kHalf; ++i) {
    const I low = bits_of_bytes<4>(p + 6 + i % kHalf * kLanes, i / kHalf * 4);
    const I fifth = (I)((U{} + fifths) >> (U)(lane + i * kLanes)) & 1;
    w[i] = d * __builtin_convertvector((low | fifth << 4) - 16, F);
  }
}

// The factors of a block's groups, made once for all of them where a block has several.
template <Packing kPacking>
struct GroupFactors {};
template <>
struct GroupFactors<Packing::kQ4_K> {
  float scale[8], minimum[8];
};
template <>
struct GroupFactors<Packing::kQ5_K> : GroupFactors<Packing::kQ4_K> {};
template <>
struct GroupFactors<Packing::kQ6_K> {
  float scale[16];
};
template <>
struct GroupFactors<Packing::kInt4G32> {
  FourBits codes;
};
template <>
struct GroupFactors<Packing::kInt4G64> : GroupFactors<Packing::kInt4G32> {};
template <>
struct GroupFactors<Packing::kInt4G128> : GroupFactors<Packing::kInt4G32> {};
template <>
struct GroupFactors<Packing::kE4m3G128> {
  F scale;
};

// Eight bits of e4m3 are a float16 of 2^-8 times the value.
constexpr float kE4m3OfHalf = 256.f;
HOTSWAP_INLINE F e4m3_as_halves(const uint8_t* p) {
#if HOTSWAP_AVX512
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0x7f)), 7);
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(0x80)), 8);
  return (F)_mm512_maskz_cvtph_ps(kAllLanes, _mm256_or_si256(magnitude, sign));
#elif HOTSWAP_AVX2
  const __m128i bytes = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
  const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(bytes, _mm_set1_epi16(0x7f)), 7);
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(bytes, _mm_set1_epi16(0x80)), 8);
  return (F)_mm256_cvtph_ps(_mm_or_si128(magnitude, sign));
#else
  F f;
  for (int i = 0; i < kLanes; ++i) f[i] = to_float(Half{uint16_t((p[i] & 0x7f) << 7 | (p[i] & 0x80) << 8)});
  return f;
#endif
}

// Eight scales, then eight minimums, of six bits each in 12 bytes: a byte each. Of the last four of both the two high
// bits are above the others' six.
HOTSWAP_INLINE void six_bits(const uint8_t* p, uint32_t (&codes)[4]) {
  uint32_t w[3];
  __builtin_memcpy(w, p, sizeof w);
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
  codes[0] = w[0] & kSix, codes[1] = (w[2] & kFour) | (w[0] >> 6 & kTwo) << 4;
  codes[2] = w[1] & kSix, codes[3] = (w[2] >> 4 & kFour) | (w[1] >> 6 & kTwo) << 4;
}

template <Packing kPacking>
HOTSWAP_INLINE GroupFactors<kPacking> factors_of(const void* block) {
  [[maybe_unused]] const uint8_t* p = static_cast<const uint8_t*>(block);
  GroupFactors<kPacking> f;
  if constexpr (kPacking == Packing::kQ4_K || kPacking == Packing::kQ5_K) {
    uint32_t codes[4];
    six_bits(p + 4, codes);
    const F d = half_everywhere(p), n = half_everywhere(p + 2);
    const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
#if HOTSWAP_AVX512
    const __m512 wide = _mm512_cvtepi32_ps((__m512i)bytes_at(bytes));  // six bits have no sign
    const __m512 both = (__m512)wide * _mm512_mask_blend_ps(0xff00, (__m512)d, (__m512)n);
    __builtin_memcpy(f.scale, &both, sizeof f.scale);
    __builtin_memcpy(f.minimum, reinterpret_cast<const char*>(&both) + sizeof f.scale, sizeof f.minimum);
#else
    for (int i = 0; i < 8; ++i) f.scale[i] = d[0] * float(bytes[i]), f.minimum[i] = n[0] * float(bytes[8 + i]);
#endif
  } else if constexpr (kPacking == Packing::kQ6_K) {
    const F d = half_everywhere(p + 208);
    for (int i = 0; i < 16; i += kLanes) {
      const F scales = d * __builtin_convertvector(bytes_at(p + 192 + i), F);
      store(f.scale + i, scales);
    }
  } else if constexpr (kIsInt4<kPacking>) {
    uint32_t head;
    __builtin_memcpy(&head, p, sizeof head);
    const float scale = as_float(head & ~uint32_t{255});
    f.codes = four_bits(splat<F>(scale), splat<F>(-scale * float(head & 255)));
  } else if constexpr (kPacking == Packing::kE4m3G128) {
    float scale;
    __builtin_memcpy(&scale, p, sizeof scale);
    f.scale = splat<F>(kE4m3OfHalf * scale);
  }
  return f;
}

#if HOTSWAP_AVX512
// 32 bytes, each shifted to the right by `shift` bits and masked.
typedef uint16_t Shorts __attribute__((vector_size(32)));
HOTSWAP_INLINE __m256i fields(const uint8_t* p, int shift, int mask) {
  const Shorts bytes = (Shorts)_mm256_loadu_si256((const __m256i*)p);
  return _mm256_and_si256((__m256i)(bytes >> shift), _mm256_set1_epi8((char)mask));
}
HOTSWAP_INLINE void widen_bytes(__m256i bytes, F (&w)[2]) {  // as signed values
  w[0] = (F)_mm512_cvtepi32_ps(_mm512_maskz_cvtepi8_epi32(kAllLanes, _mm256_castsi256_si128(bytes)));
  w[1] = (F)_mm512_cvtepi32_ps(_mm512_maskz_cvtepi8_epi32(kAllLanes, _mm256_extracti128_si256(bytes, 1)));
}
#endif

// A factor in every lane, by a load: splat() takes it through a register, and the port for that is the one that is
// full.
HOTSWAP_INLINE F everywhere(const float* p) {
#if HOTSWAP_AVX512
  return (F)_mm512_set1_ps(*p);
#elif HOTSWAP_AVX2
  return (F)_mm256_broadcast_ss(p);
#else
  return splat<F>(*p);
#endif
}

template <Packing kPacking>
HOTSWAP_INLINE void unpack_with_minimum(const uint8_t* p, int group, const GroupFactors<kPacking>& f,
                                        F (&w)[2 * kHalf]) {
  constexpr bool kFifths = kPacking == Packing::kQ5_K;
  const F d = everywhere(f.scale + group), m = everywhere(f.minimum + group);
  const uint8_t* q = p + (kFifths ? 48 : 16) + group / 2 * kPackedGroup;
#if HOTSWAP_AVX512
  if constexpr (!kFifths) {  // the 16 weights that there may be, as in unpack_q4
    const F count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const __m512 table = (__m512)(d * count - m);
    for (int i = 0; i < 2; ++i) {
      const I both = bytes_at(q + i * kLanes) >> (group % 2 * 4);
      w[i] = (F)_mm512_maskz_permutexvar_ps(kAllLanes, (__m512i)both, table);
    }
  } else {
    const __m256i high = _mm256_slli_epi16(fields(p + 16, group, 1), 4);
    widen_bytes(_mm256_or_si256(fields(q, group % 2 * 4, 15), high), w);
    for (int i = 0; i < 2; ++i) w[i] = d * w[i] - m;
  }
#else
  for (int i = 0; i < 2 * kHalf; ++i) {
    I code = bits_of_bytes<4>(q + i * kLanes, group % 2 * 4);
    if constexpr (kFifths) code |= bits_of_bytes<1>(p + 16 + i * kLanes, group) << 4;
    w[i] = d * __builtin_convertvector(code, F) - m;
  }
#endif
}

HOTSWAP_INLINE void unpack_q6_k(const uint8_t* p, int group, const GroupFactors<Packing::kQ6_K>& f, F (&w)[2 * kHalf]) {
  const int half = group / 4, quarter = group % 4;
  const uint8_t *lows = p + 64 * half + 32 * (quarter % 2), *highs = p + 128 + 32 * half;
  const float* scales = f.scale + 2 * group;
#if HOTSWAP_AVX512
  const __m256i high = _mm256_slli_epi16(fields(highs, quarter * 2, 3), 4);
  const __m256i codes = _mm256_or_si256(fields(lows, quarter / 2 * 4, 15), high);
  widen_bytes(_mm256_sub_epi8(codes, _mm256_set1_epi8(32)), w);
  for (int i = 0; i < 2; ++i) w[i] = everywhere(scales + i) * w[i];
#else
  for (int i = 0; i < 2 * kHalf; ++i) {
    const I low = bits_of_bytes<4>(lows + i * kLanes, quarter / 2 * 4);
    const I high = bits_of_bytes<2>(highs + i * kLanes, quarter * 2);
    w[i] = everywhere(scales + i / kHalf) * __builtin_convertvector((low | high << 4) - 32, F);
  }
#endif
}

// Half of 2^(e - 127), by its bits: the two smallest are denormal. The codes are doubled.
HOTSWAP_INLINE float half_of_e8m0(uint8_t e) { return as_float(e < 2 ? (e + 1u) << 21 : (e - 1u) << 23); }

HOTSWAP_INLINE void unpack_mxfp4(const uint8_t* p, F (&w)[2 * kHalf]) {
  const float d = half_of_e8m0(p[0]);
#if HOTSWAP_AVX512
  const F codes = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  unpack_pairs(p + 1, {d * codes}, w);
#elif HOTSWAP_AVX2
  const F magnitudes = F{0, 1, 2, 3, 4, 6, 8, 12} * d;
  for (int i = 0; i < 2 * kHalf; ++i) {
    const I code = bytes_at(p + 1 + i % kHalf * kLanes) >> (i / kHalf * 4);
    const I size = (I)_mm256_permutevar8x32_ps((__m256)magnitudes, (__m256i)(code & 7));
    w[i] = (F)(size | (code & 8) << 28);
  }
#else
  constexpr float kCodes[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int i = 0; i < 2 * kHalf; ++i) {
    const uint8_t* q = p + 1 + i % kHalf * kLanes;
    for (int j = 0; j < kLanes; ++j) w[i][j] = d * kCodes[q[j] >> (i / kHalf * 4) & 15];
  }
#endif
}

// A group's weights: kHalf vectors of the first 16, kHalf of the others.
template <Packing kPacking>
HOTSWAP_INLINE void unpack(const void* block, int group, const GroupFactors<kPacking>& f, F (&w)[2 * kHalf]) {
  const uint8_t* p = static_cast<const uint8_t*>(block);
  if constexpr (kPacking == Packing::kQ8_0) {
    const F d = half_everywhere(p);
    for (int i = 0; i < 2 * kHalf; ++i) w[i] = d * __builtin_convertvector(bytes_at(p + 2 + i * kLanes), F);
  } else if constexpr (kPacking == Packing::kQ5_0) {
    unpack_q5_0(p, w);
  } else if constexpr (kPacking == Packing::kQ4_K || kPacking == Packing::kQ5_K) {
    unpack_with_minimum<kPacking>(p, group, f, w);
  } else if constexpr (kPacking == Packing::kQ6_K) {
    unpack_q6_k(p, group, f, w);
  } else if constexpr (kIsInt4<kPacking>) {
    unpack_pairs(p + 4 + group * (kPackedGroup / 2), f.codes, w);
  } else if constexpr (kPacking == Packing::kMxfp4) {
    unpack_mxfp4(p, w);
  } else if constexpr (kPacking == Packing::kE4m3G128) {
    for (int i = 0; i < 2 * kHalf; ++i) w[i] = f.scale * e4m3_as_halves(p + 4 + group * kPackedGroup + i * kLanes);
  } else {
    unpack_q4<kPacking>(p, w);
  }
}

}  // namespace kernels::HOTSWAP_ISA
