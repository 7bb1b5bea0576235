// Products with packed weights, y = x w^T + bias. A weight is what its block says, as float32: the scale times the
// number is exact there, and a minimum is added with one rounding, as in the dequantised form. Products and sums
// are float32 in an order that does not depend on the number of rows or threads.
// Included by files that are compiled once per ISA.
#pragma once

#include "kernels/common/cpu/out_of_line.h"
#include "kernels/common/cpu/vec.h"
#include "kernels/common/packing.h"

namespace kernels::HOTSWAP_ISA {

struct PackedRows {
  DType dtype;  // of bias and y
  Packing packing;
  const float* x;    // [rows, in]
  const void* w;     // [out, blocks of `in` weights], rows w_stride bytes apart
  const void* bias;  // [out] or null
  void* y;           // [rows, out], rows y_stride elements apart
  int64_t rows, in, w_stride, y_stride;
  float* room;  // [kChunk, in] where rows > kStreamedRows
};

constexpr int64_t kStreamedRows = 4;  // so many rows use a block as it is decoded; for more it is kept decoded
constexpr int64_t kChunk = 16;        // outputs whose weights are decoded at once

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

// Of 16 bytes: kHalf vectors of the low halves, kHalf of the high ones.
template <Packing kPacking>
HOTSWAP_INLINE void unpack_q4(const uint8_t* p, F (&w)[2 * kHalf]) {
  constexpr bool kMinimum = kPacking == Packing::kQ4_1;
  const F d = half_everywhere(p), m = kMinimum ? half_everywhere(p + 2) : -8.f * d;
  const uint8_t* q = p + (kMinimum ? 4 : 2);
#if HOTSWAP_AVX512
  // The 16 weights that there may be, looked up by the lowest four bits of each lane.
  const F count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __m512 table = (__m512)(d * count + m);
  const I both = bytes_at(q);
  w[0] = (F)_mm512_maskz_permutexvar_ps(kAllLanes, (__m512i)both, table);
  w[1] = (F)_mm512_maskz_permutexvar_ps(kAllLanes, (__m512i)(both >> 4), table);
#else
  for (int i = 0; i < kHalf; ++i) {
    const I both = bytes_at(q + i * kLanes);
    w[i] = d * __builtin_convertvector(both & 15, F) + m;
    w[kHalf + i] = d * __builtin_convertvector((both >> 4) & 15, F) + m;
  }
#endif
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

// A group's weights: kHalf vectors of the first 16, kHalf of the others.
template <Packing kPacking>
HOTSWAP_INLINE void unpack(const void* block, int group, const GroupFactors<kPacking>& f, F (&w)[2 * kHalf]) {
  const uint8_t* p = static_cast<const uint8_t*>(block);
  if constexpr (kPacking == Packing::kNone) {
    for (int i = 0; i < 2 * kHalf; ++i) w[i] = load(static_cast<const float*>(block) + i * kLanes);
  } else if constexpr (kPacking == Packing::kQ8_0) {
    const F d = half_everywhere(p);
    for (int i = 0; i < 2 * kHalf; ++i) w[i] = d * __builtin_convertvector(bytes_at(p + 2 + i * kLanes), F);
  } else if constexpr (kPacking == Packing::kQ5_0) {
    unpack_q5_0(p, w);
  } else if constexpr (kPacking == Packing::kQ4_K || kPacking == Packing::kQ5_K) {
    unpack_with_minimum<kPacking>(p, group, f, w);
  } else if constexpr (kPacking == Packing::kQ6_K) {
    unpack_q6_k(p, group, f, w);
  } else {
    unpack_q4<kPacking>(p, w);
  }
}

// A number in memory of a type that is known at run time: once an output, not in the inner loop.
HOTSWAP_INLINE float number_at(const void* p, DType dtype, int64_t i) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(p)[i];
  if (dtype == DType::kBFloat16) return to_float(static_cast<const BFloat16*>(p)[i]);
  return to_float(static_cast<const Half*>(p)[i]);
}
HOTSWAP_INLINE void put_number(void* p, DType dtype, int64_t i, float v) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(p)[i] = v;
  } else if (dtype == DType::kBFloat16) {
    static_cast<BFloat16*>(p)[i] = from_float<BFloat16>(v);
  } else {
    static_cast<Half*>(p)[i] = from_float<Half>(v);
  }
}

template <int kRows, int kOuts, Packing kPacking>
HOTSWAP_INLINE void packed_dot(const PackedRows& a, int64_t out, int64_t apart) {
  constexpr int64_t kBytes = packed_bytes(kPacking), kAheadOfBlock = 1024, kLine = 64;
  constexpr int kGroups = packed_block(kPacking) / kPackedGroup;
  const char* w = static_cast<const char*>(a.w) + out * a.w_stride;
  F s0[kOuts][kRows] = {}, s1[kOuts][kRows] = {};
  const float* x = a.x;
  for (const char* last = w + a.in / packed_block(kPacking) * kBytes; w < last; w += kBytes) {
    GroupFactors<kPacking> factors[kOuts];
    for (int o = 0; o < kOuts; ++o) factors[o] = factors_of<kPacking>(w + o * apart * a.w_stride);
#pragma GCC unroll 8  // shifts by a constant are half of others
    for (int g = 0; g < kGroups; ++g, x += kPackedGroup) {
#pragma GCC unroll 8
      for (int o = 0; o < kOuts; ++o) {
        const char* block = w + o * apart * a.w_stride;
        if constexpr (kPacking != Packing::kNone) {
          if (g * kLine < kBytes) __builtin_prefetch(block + kAheadOfBlock + g * kLine);
        }
        F v[2 * kHalf];
        unpack<kPacking>(block, g, factors[o], v);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < kHalf; ++i) {
            s0[o][r] += v[i] * load(x + r * a.in + i * kLanes);
            s1[o][r] += v[kHalf + i] * load(x + r * a.in + 16 + i * kLanes);
          }
        }
      }
    }
  }
  for (int o = 0; o < kOuts; ++o) {
    const int64_t at = out + o * apart;
    const float bias = a.bias == nullptr ? 0.f : number_at(a.bias, a.dtype, at);
    for (int r = 0; r < kRows; ++r) put_number(a.y, a.dtype, r * a.y_stride + at, sum(s0[o][r] + s1[o][r]) + bias);
  }
}

// As in few_rows.h the outputs of a step lie in as many parts of the matrix, so that several pages are on their way.
template <int kRows, Packing kPacking>
HOTSWAP_OUT_OF_LINE void packed_outputs(PackedRows a, int64_t begin, int64_t end) {
  constexpr int kRegisters = kLanes == 16 ? 16 : 8, kOuts = kRegisters / 2 / kRows;  // two accumulators an output
  const int64_t part = (end - begin) / kOuts;
  for (int64_t out = begin; out < begin + part; ++out) packed_dot<kRows, kOuts, kPacking>(a, out, part);
  for (int64_t out = begin + part * kOuts; out < end; ++out) packed_dot<kRows, 1, kPacking>(a, out, 0);
}

// At most kStreamedRows of them.
template <Packing kPacking>
HOTSWAP_INLINE void packed_few(const PackedRows& a, int64_t begin, int64_t end) {
  if (a.rows == 1) return packed_outputs<1, kPacking>(a, begin, end);
  if (a.rows == 2) return packed_outputs<2, kPacking>(a, begin, end);
  if (a.rows == 3) return packed_outputs<3, kPacking>(a, begin, end);
  packed_outputs<4, kPacking>(a, begin, end);
}

template <Packing kPacking>
HOTSWAP_INLINE void unpack_row(float* to, const void* from, int64_t in) {
  constexpr int64_t kBlock = packed_block(kPacking);
  const char* block = static_cast<const char*>(from);
  for (int64_t i = 0; i < in; i += kBlock, block += packed_bytes(kPacking)) {
    const GroupFactors<kPacking> factors = factors_of<kPacking>(block);
    for (int g = 0; g < kBlock / kPackedGroup; ++g) {
      F v[2 * kHalf];
      unpack<kPacking>(block, g, factors, v);
      for (int j = 0; j < 2 * kHalf; ++j) store(to + i + g * kPackedGroup + j * kLanes, v[j]);
    }
  }
}

// Outputs [begin, end) of every row.
HOTSWAP_INLINE void packed_product(const PackedRows& a, int64_t begin, int64_t end) {
  with_packing(a.packing, [&]<Packing kPacking>() HOTSWAP_LAMBDA {
    if (a.rows <= kStreamedRows) return packed_few<kPacking>(a, begin, end);
    for (int64_t out = begin; out < end; out += kChunk) {
      const int64_t count = end - out < kChunk ? end - out : kChunk;
      for (int64_t i = 0; i < count; ++i) {
        unpack_row<kPacking>(a.room + i * a.in, static_cast<const char*>(a.w) + (out + i) * a.w_stride, a.in);
      }
      PackedRows chunk = a;
      chunk.packing = Packing::kNone, chunk.w = a.room, chunk.w_stride = a.in * int64_t(sizeof(float));
      chunk.bias = a.bias == nullptr ? nullptr : static_cast<const char*>(a.bias) + out * size_of(a.dtype);
      for (int64_t r = 0; r < a.rows; r += kStreamedRows) {
        chunk.rows = a.rows - r < kStreamedRows ? a.rows - r : kStreamedRows;
        chunk.x = a.x + r * a.in;
        chunk.y = static_cast<char*>(a.y) + (r * a.y_stride + out) * size_of(a.dtype);
        packed_few<Packing::kNone>(chunk, 0, count);
      }
    }
  });
}

}  // namespace kernels::HOTSWAP_ISA
