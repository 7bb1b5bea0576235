// Square blocks of kLanes vectors, transposed in registers.
#pragma once

#include "kernels/common/cpu/vec.h"

namespace kernels::HOTSWAP_ISA {

// Of two rows the halves that belong to each other: lanes without bit kHalf of both, and those with it.
struct Pair {
  F low, high;
};
template <int kHalf>
HOTSWAP_INLINE Pair swap_halves(F a, F b) {
  I low, high;
  for (int l = 0; l < kLanes; ++l) {
    low[l] = (l & kHalf) != 0 ? kLanes + l - kHalf : l;
    high[l] = (l & kHalf) != 0 ? kLanes + l : l + kHalf;
  }
  return {__builtin_shuffle(a, b, low), __builtin_shuffle(a, b, high)};
}

// One of log2(kLanes) steps.
template <int kHalf>
HOTSWAP_INLINE void transpose_step(F (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kHalf) != 0) continue;
    const Pair swapped = swap_halves<kHalf>(rows[i], rows[i + kHalf]);
    rows[i] = swapped.low, rows[i + kHalf] = swapped.high;
  }
  if constexpr (kHalf > 1) transpose_step<kHalf / 2>(rows);
}

// Row l of the vectors becomes their lane l.
HOTSWAP_INLINE void transpose(F (&rows)[kLanes]) { transpose_step<kLanes / 2>(rows); }

// Lane l of the result is the sum of row l's lanes: each step leaves half the rows.
template <int kHalf = kLanes / 2>
HOTSWAP_INLINE F sum_rows(F (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kHalf; ++i) {
    const Pair swapped = swap_halves<kHalf>(rows[i], rows[i + kHalf]);
    rows[i] = swapped.low + swapped.high;
  }
  if constexpr (kHalf > 1)
    return sum_rows<kHalf / 2>(rows);
  else
    return rows[0];
}

}  // namespace kernels::HOTSWAP_ISA
