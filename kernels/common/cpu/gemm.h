// Small matrix products in float32: blocks of six rows by as many vectors as the registers hold.
#pragma once

#include "kernels/common/cpu/vec.h"

namespace kernels::HOTSWAP_ISA {

constexpr int kBlockVecs = kLanes == 16 ? 4 : 2;  // 24 sums of 32 registers, 12 of 16

enum class Into { kSet, kAdd, kScaled };  // c = a b, c += a b, c = scale[row] c + a b

struct Left {  // a[row][step]: numbers one by one, so in any layout
  const float* at;
  int64_t row, step;
};
struct Right {  // b[step][column]: vectors, columns beside each other
  const float* at;
  int64_t step;
};

template <Into kInto, int kRows, int kVecs>
HOTSWAP_INLINE void block(float* c, int64_t c_row, Left a, Right b, int64_t steps, const float* scale) {
  F sum[kRows][kVecs] = {};
  const float* asked = c;  // what the products are added to mostly waits in the second cache
  for (int64_t k = 0; k < steps; ++k) {
    if (kInto != Into::kSet && k < kRows) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) __builtin_prefetch(asked + v * kLanes);
      asked += c_row;
    }
    F right[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) right[v] = load(b.at + k * b.step + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const F left = a.at[r * a.row + k * a.step] - F{};  // from memory into all lanes: 0 + x would be an addition
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + r * c_row + v * kLanes;
      if constexpr (kInto == Into::kSet) store(to, sum[r][v]);
      if constexpr (kInto == Into::kAdd) store(to, load(to) + sum[r][v]);
      if constexpr (kInto == Into::kScaled) store(to, scale[r] * load(to) + sum[r][v]);
    }
  }
}

template <Into kInto, int kVecs>
static void columns(float* c, int64_t c_row, Left a, Right b, int64_t rows, int64_t steps, const float* scale) {
  const auto some = [&]<int kRows>() HOTSWAP_LAMBDA {
    block<kInto, kRows, kVecs>(c, c_row, a, b, steps, scale);
    c += kRows * c_row;
    a.at += kRows * a.row;
    if constexpr (kInto == Into::kScaled) scale += kRows;
    rows -= kRows;
  };
  while (rows >= 6) some.template operator()<6>();
  if (rows >= 4) some.template operator()<4>();
  if (rows >= 2) some.template operator()<2>();
  if (rows >= 1) some.template operator()<1>();
}

// cols: a multiple of kLanes.
template <Into kInto>
static void multiply(float* c, int64_t c_row, Left a, Right b, int64_t rows, int64_t cols, int64_t steps,
                     const float* scale = nullptr) {
  int64_t col = 0;
  const auto some = [&]<int kVecs>() HOTSWAP_LAMBDA {
    for (; col + kVecs * kLanes <= cols; col += kVecs * kLanes)
      columns<kInto, kVecs>(c + col, c_row, a, {b.at + col, b.step}, rows, steps, scale);
  };
  some.template operator()<kBlockVecs>();
  if constexpr (kBlockVecs > 2) some.template operator()<2>();
  some.template operator()<1>();
}

}  // namespace kernels::HOTSWAP_ISA
