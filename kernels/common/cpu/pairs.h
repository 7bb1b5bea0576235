// Matrix products of bfloat16 where the CPU multiplies pairs (AVX512_BF16): twice the multiply-adds of an instruction
// for float32. Products are exact and sums float32, as with numbers widened first; numbers below 2^-126 count as 0.
// A pair lies in 32 bits, the first of its numbers in the lower half. Included by files that are compiled once per
// ISA; of these the one of AVX-512 alone has any.
#pragma once

#include "kernels/common/cpu/gemm.h"

namespace kernels {

// Whether this CPU does, and HOTSWAP_ISA does not lower the choice of what it may do.
bool multiplies_pairs();

}  // namespace kernels

namespace kernels::HOTSWAP_ISA {

struct LeftPairs {  // a[row][step], a pair each
  const uint32_t* at;
  int64_t row, step;
};

// to[i] = the pair of low[i] and high[i]; high may be null: zeros.
HOTSWAP_INLINE void interleave(uint32_t* to, const uint16_t* low, const uint16_t* high, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = low[i];
  if (high == nullptr) return;
  for (int64_t i = 0; i < count; ++i) to[i] |= uint32_t{high[i]} << 16;
}

#if HOTSWAP_AVX512
#define HOTSWAP_PAIRS __attribute__((target("avx512bf16")))

// c[row][column] = factor * sum over steps of a pair of a's row and a pair of b's column, or that is added to it. b:
// at[step][column], a lane a pair.
template <Into kInto, int kRows, int kVecs>
HOTSWAP_PAIRS static void pairs_block(float* c, int64_t c_row, LeftPairs a, Right b, int64_t steps, float factor) {
  __m512 sum[kRows][kVecs];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const float* asked = c;  // what the products are added to mostly waits in the second cache
  for (int64_t k = 0; k < steps; ++k) {
    if (kInto == Into::kAdd && k < kRows) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) __builtin_prefetch(asked + v * kLanes);
      asked += c_row;
    }
    __m512bh right[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) right[v] = (__m512bh)load(b.at + k * b.step + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh left = (__m512bh)_mm512_set1_epi32(int(a.at[r * a.row + k * a.step]));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + r * c_row + v * kLanes;
      store(to, kInto == Into::kAdd ? load(to) + factor * (F)sum[r][v] : factor * (F)sum[r][v]);
    }
  }
}

template <Into kInto, int kVecs>
static void pairs_columns(float* c, int64_t c_row, LeftPairs a, Right b, int64_t rows, int64_t steps, float factor) {
  const auto some = [&]<int kRows>() HOTSWAP_LAMBDA {
    pairs_block<kInto, kRows, kVecs>(c, c_row, a, b, steps, factor);
    c += kRows * c_row;
    a.at += kRows * a.row;
    rows -= kRows;
  };
  while (rows >= 6) some.template operator()<6>();
  if (rows >= 4) some.template operator()<4>();
  if (rows >= 2) some.template operator()<2>();
  if (rows >= 1) some.template operator()<1>();
}

// cols: a multiple of kLanes.
template <Into kInto>
static void multiply_pairs(float* c, int64_t c_row, LeftPairs a, Right b, int64_t rows, int64_t cols, int64_t steps,
                           float factor) {
  int64_t col = 0;
  const auto some = [&]<int kVecs>() HOTSWAP_LAMBDA {
    for (; col + kVecs * kLanes <= cols; col += kVecs * kLanes)
      pairs_columns<kInto, kVecs>(c + col, c_row, a, {b.at + col, b.step}, rows, steps, factor);
  };
  some.template operator()<kBlockVecs>();
  some.template operator()<2>();
  some.template operator()<1>();
}

// Rounds to the nearest, `count` a multiple of kLanes: to[i] the pair of low[i] and high[i] ...
HOTSWAP_PAIRS static inline void round_interleaved(uint32_t* to, const float* low, const float* high, int64_t count) {
  alignas(64) uint16_t order[2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) order[i] = uint16_t(i / 2 + (i % 2) * kLanes);
  const __m512i turns = _mm512_load_si512(order);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512bh halves = _mm512_cvtne2ps_pbh((__m512)load(high + i), (__m512)load(low + i));
    _mm512_storeu_si512(to + i, _mm512_maskz_permutexvar_epi16(~0u, turns, (__m512i)halves));
  }
}
// ... and the pairs of neighbours.
HOTSWAP_PAIRS static inline void round_beside(uint32_t* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2), (__m256i)_mm512_cvtneps_pbh((__m512)load(from + i)));
}
#else  // multiplies_pairs() is false
template <Into kInto>
static void multiply_pairs(float*, int64_t, LeftPairs, Right, int64_t, int64_t, int64_t, float) {}
HOTSWAP_INLINE void round_interleaved(uint32_t*, const float*, const float*, int64_t) {}
HOTSWAP_INLINE void round_beside(uint32_t*, const float*, int64_t) {}
#endif

}  // namespace kernels::HOTSWAP_ISA
