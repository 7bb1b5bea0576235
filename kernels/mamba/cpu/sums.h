// Sums that items of work left behind, added up in float64: few, and of any number of terms. Compiled once per ISA.
#pragma once

#include "kernels/mamba/cpu/tile.h"

namespace mamba::HOTSWAP_ISA {

// sums: [entries][all_rows][channels]. Step r of `to` becomes the sum over entries of row first + r, for channels
// [begin, end).
static void add_entries(const float* sums, int64_t entries, int64_t all_rows, int64_t channels, int64_t first,
                        int64_t rows, const View& to, int64_t begin, int64_t end) {
  if (to.data == nullptr) return;
  with_dtype(to.type, [&]<typename T>() {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = begin; c < end; ++c) {
        double sum = 0;
        for (int64_t e = 0; e < entries; ++e) sum += double(sums[(e * all_rows + first + r) * channels + c]);
        static_cast<T*>(to.data)[c * to.channel + r * to.step] = from_float<T>(float(sum));
      }
    }
  });
}

}  // namespace mamba::HOTSWAP_ISA
