// Dynamic tanh, which stands where a norm would: no sums over a row.
//
//   y = t gamma + beta,  t = tanh(alpha x)              alpha one number, gamma and beta [cols]
//   s = dy gamma (1 - t^2);   dx = alpha s,  dalpha = sum x s,  dgamma = sum over rows of dy t,  dbeta = sum over rows
//   of dy
//
// Casting: x is read and y, dx are rounded once to its type, all else is fp32. Rows are summed in chunks, whose number
// depends on the shape alone: the same sums with any number of threads.
#pragma once
#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace dyt {

using kernels::DType;

struct Parameter {  // float32 on the CPU, of any type on a GPU
  const void* data;
  DType dtype;
};

struct Forward {
  DType dtype;
  void* y;                       // [rows, cols]
  const void* x;                 // [rows, cols], rows x_stride apart
  Parameter alpha, gamma, beta;  // [1], [cols], [cols] or null
  int64_t rows, cols, x_stride;
  bool stream;
};

struct Backward {
  DType dtype;
  void* dx;  // [rows, cols]
  float *partial_alpha, *partial_gamma,
      *partial_beta;   // sums over a chunk of rows: [chunks, strips of columns], [chunks, cols] twice; on the CPU one
                       // strip
  const void *dy, *x;  // [rows, cols]
  Parameter alpha, gamma;  // [1], [cols]
  int64_t rows, cols, dy_stride, x_stride;
  int64_t chunk;  // rows of one, on the CPU
};

struct ColumnSum {  // out[c] = sum over rows of partial[row, c], in order
  DType dtype;
  void* out;             // [cols]
  const float* partial;  // [rows, cols]
  int64_t rows, cols;
};

// Each works on rows (backward: chunks of rows; column_sum: columns) [begin, end).
struct Table {
  void (*forward)(const Forward&, int64_t begin, int64_t end);
  void (*backward)(const Backward&, int64_t begin, int64_t end);
  void (*column_sum)(const ColumnSum&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace dyt
