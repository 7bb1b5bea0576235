// Square blocks of kLanes vectors, transposed in registers.
#pragma once

#include "kernels/common/cpu/vec.h"

namespace kernels::HOTSWAP_ISA {

// One of log2(kLanes) steps: rows i and i + kHalf swap the halves that belong to each other.
template <int kHalf>
HOTSWAP_INLINE void transpose_step(F (&rows)[kLanes]) {
  I low, high;
  for (int l = 0; l < kLanes; ++l) {
    low[l] = (l & kHalf) != 0 ? kLanes + l - kHalf : l;
    high[l] = (l & kHalf) != 0 ? kLanes + l : l + kHalf;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kHalf) != 0) continue;
    const F a = rows[i], b = rows[i + kHalf];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + kHalf] = __builtin_shuffle(a, b, high);
  }
  if constexpr (kHalf > 1) transpose_step<kHalf / 2>(rows);
}

// Row l of the vectors becomes their lane l.
HOTSWAP_INLINE void transpose(F (&rows)[kLanes]) { transpose_step<kLanes / 2>(rows); }

}  // namespace kernels::HOTSWAP_ISA
