// Products with packed weights, y = x w^T + bias, of any number of rows. Each row's result has the same bits whatever
// the number of rows and threads: both ways add an output's products in the same order.
// Included by files that are compiled once per ISA.
#pragma once

#include "kernels/common/cpu/packed_tiles.h"

namespace kernels::HOTSWAP_ISA {

constexpr int64_t kInputRows = 4;  // packed_input() takes such groups of rows
static_assert(kInputRows % kTileRows == 0 && kBlockRows % kTileRows == 0 && kPanelRows % kBlockRows == 0);

// Rows [begin, end) of x [rows, in] as packed_product() reads them. begin: a multiple of kInputRows. row_of(i): where
// row i of x begins.
template <class RowOf>
HOTSWAP_INLINE void packed_input(float* to, const RowOf& row_of, int64_t rows, int64_t in, int64_t begin, int64_t end) {
  if (rows > kStreamedRows) {
    for (int64_t row = begin; row < end; row += kTileRows) {
      interleave_rows(to, row_of, row, lesser(rows - row, kTileRows), rows, in);
    }
  } else {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < in; i += kLanes) store(to + row * in + i, load(row_of(row) + i));
    }
  }
}
template <class T>
HOTSWAP_INLINE void packed_input(float* to, const T* x, int64_t x_stride, int64_t rows, int64_t in, int64_t begin,
                                 int64_t end) {
  packed_input(
      to, [&](int64_t row) HOTSWAP_LAMBDA { return x + row * x_stride; }, rows, in, begin, end);
}

// Outputs [begin, end) of every row.
void packed_product(const PackedProduct& a, int64_t begin, int64_t end);  // per_isa/packed_product.cpp

// The same with weights of y's dtype that are not packed, of more than kStreamedRows rows. a.in: a multiple of
// kPackedGroup.
void plain_product(const PackedProduct& a, int64_t begin, int64_t end);

}  // namespace kernels::HOTSWAP_ISA
