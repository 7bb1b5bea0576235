// y = x w^T + bias for the few rows of a decode step, where a GEMM library is far from the memory's speed: every weight
// is read once and used `rows` times, so the floor is out * in * sizeof(weight) / bandwidth.
//
//   x: [rows, in] in its dtype, w: [out, in] in the same, bias: [out] or none -> y: [rows, out]
//
// Casting: products and sums in float32, one rounding of y. Above kMaxRows rows the op is aten::linear. Backward is two
// GEMMs in any case: dx = dy w, dweight = dy^T x, dbias = sum of dy's rows.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace linear {

using kernels::DType;

constexpr int64_t kMaxRows = 4;
constexpr int64_t kGroup = 4;  // outputs of one call of the inner loop; the unit of work of a thread

struct Gemv {
  DType dtype;
  const float* x;    // [rows, in] float32, made by prepare()
  const void* w;     // [out, in], rows w_stride elements apart
  const void* bias;  // [out] or null
  void* y;           // [rows, out]
  int64_t rows, in, out, w_stride;
};

struct Table {
  // x [rows, in] as float32 in the order in which gemv reads it (bfloat16 pairs are split into even and odd lanes).
  void (*prepare)(float* to, const void* x, DType dtype, int64_t rows, int64_t in, int64_t x_stride);
  // Outputs [begin, end) of every row.
  void (*gemv)(const Gemv& a, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace linear
