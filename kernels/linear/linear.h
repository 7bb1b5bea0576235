// y = x w^T + bias for the few rows of a decode step, where a GEMM library is far from the memory's speed: every weight
// is read once and used `rows` times, so the floor is out * in * sizeof(weight) / bandwidth.
//
//   x: [rows, in] in its dtype, w: [out, in] in the same, bias: [out] or none -> y: [rows, out]
//
// Casting: products and sums in float32, one rounding of y. Above kMaxRows rows the op is aten::linear, but of 16 bits
// on a CPU without instructions for them: there it is a product of tiles in float32, whose rows have the same bits
// whatever the number of rows, or where `in` is no multiple of 32 aten::linear of copies in float32. Backward is two
// GEMMs in any case, there of such copies: dx = dy w, dweight = dy^T x, dbias = sum of dy's rows.
//
// packed_linear: the same with a weight in blocks of a GGUF file (packing.h), forward alone, any number of rows. The
// weight is never rounded: each number is what its block says in float32, the same bits as the file's dequantised form.
// x in its dtype, products and sums in float32, one rounding of y. So against the dequantised weight in exact
// arithmetic
//   |y - (x w^T + bias)| <= u |y| + (in / 8 + 8) 2^-24 (|x| |w|^T + |bias|)      u: half a last place of y's type
// because a lane of the narrowest vectors adds in / 8 products one after the other, and the lanes a tree. Each row's
// result has the same bits whatever the number of rows and threads.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/cpu/packed_arguments.h"
#include "kernels/common/dtype.h"
#include "kernels/common/packing.h"

namespace linear {

using kernels::DType;

constexpr int64_t kMaxRows = 4;
constexpr int64_t kInputRows = 4;   // packed_input's unit of work
constexpr int64_t kPartRows = 512;  // rows whose float32 form packed and plain are given at a time
constexpr int64_t kGroup = 4;       // outputs of one call of the inner loop; the unit of work of a thread

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
  // x [rows, in] as float32.
  void (*widen)(float* to, const void* x, DType dtype, int64_t rows, int64_t in, int64_t x_stride);
  // Rows [begin, end) of x [rows, in] as float32 in the order in which packed reads them. begin: a multiple of
  // kInputRows.
  void (*packed_input)(float* to, const void* x, DType dtype, int64_t x_stride, int64_t rows, int64_t in, int64_t begin,
                       int64_t end);
  int64_t (*room)(int64_t rows, int64_t in);  // floats that a thread needs for packed
  // Outputs [begin, end) of every row.
  void (*packed)(const kernels::PackedProduct& a, int64_t begin, int64_t end);
  // The same with weights in x's dtype, of more than kMaxRows rows.
  void (*plain)(const kernels::PackedProduct& a, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace linear
