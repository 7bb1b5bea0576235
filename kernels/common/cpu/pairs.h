// Matrix products of bfloat16 where the CPU multiplies pairs (AVX512_BF16): twice the multiply-adds of an instruction
// for float32. Products are exact and sums float32, as with numbers widened first; numbers below 2^-126 count as 0.
// Included by files that are compiled once per ISA; of these the one of AVX-512 alone has any.
#pragma once

#include "kernels/common/cpu/gemm.h"

namespace kernels {

// Whether this CPU does, and HOTSWAP_ISA does not lower the choice of what it may do.
bool multiplies_pairs();

}  // namespace kernels

namespace kernels::HOTSWAP_ISA {

#if HOTSWAP_AVX512
#define HOTSWAP_PAIRS __attribute__((target("avx512bf16")))

// c[row][column] = factor * sum over steps of a pair of a's row and a pair of b's column. b: at[step][column], a lane a
// pair; a: rows of pairs.
template <int kRows, int kVecs>
HOTSWAP_PAIRS static void pairs_block(float* c, int64_t c_row, const uint32_t* a, int64_t a_row, Right b, int64_t steps,
                                      float factor) {
  __m512 sum[kRows][kVecs];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < steps; ++k) {
    __m512bh right[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) right[v] = (__m512bh)load(b.at + k * b.step + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512bh left = (__m512bh)_mm512_set1_epi32(int(a[r * a_row + k]));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) store(c + r * c_row + v * kLanes, factor * (F)sum[r][v]);
  }
}

template <int kVecs>
static void pairs_columns(float* c, int64_t c_row, const uint32_t* a, int64_t a_row, Right b, int64_t rows,
                          int64_t steps, float factor) {
  const auto some = [&]<int kRows>() HOTSWAP_LAMBDA {
    pairs_block<kRows, kVecs>(c, c_row, a, a_row, b, steps, factor);
    c += kRows * c_row;
    a += kRows * a_row;
    rows -= kRows;
  };
  while (rows >= 6) some.template operator()<6>();
  if (rows >= 4) some.template operator()<4>();
  if (rows >= 2) some.template operator()<2>();
  if (rows >= 1) some.template operator()<1>();
}

// cols: a multiple of kLanes.
HOTSWAP_INLINE void multiply_pairs(float* c, int64_t c_row, const uint32_t* a, int64_t a_row, Right b, int64_t rows,
                                   int64_t cols, int64_t steps, float factor) {
  int64_t col = 0;
  const auto some = [&]<int kVecs>() HOTSWAP_LAMBDA {
    for (; col + kVecs * kLanes <= cols; col += kVecs * kLanes)
      pairs_columns<kVecs>(c + col, c_row, a, a_row, {b.at + col, b.step}, rows, steps, factor);
  };
  some.template operator()<kBlockVecs>();
  some.template operator()<2>();
  some.template operator()<1>();
}
#else  // multiplies_pairs() is false
HOTSWAP_INLINE void multiply_pairs(float*, int64_t, const uint32_t*, int64_t, Right, int64_t, int64_t, int64_t, float) {
}
#endif

}  // namespace kernels::HOTSWAP_ISA
