// Mamba-2's gated RMSNorm: over groups of `group` numbers of a row (the whole row is one group as well), the gate
// silu(z) = z sigmoid(z) before the norm or behind it.
//
//   gate first   u = x silu(z),   n = u rstd,   y = n weight,            rstd = 1 / sqrt(mean over the group of u^2 +
//   eps) norm first   u = x,           n = u rstd,   y = n weight silu(z) backward     g = dy weight (norm first: dy
//   weight silu(z)),   du = rstd (g - n mean(g n))
//                gate first: dx = du silu(z),  dz = du x silu'(z),  dweight = sum over rows of dy n
//                norm first: dx = du,  dz = dy weight n silu'(z),  dweight = sum over rows of dy n silu(z)
//
// Casting: float32 inside, every result rounded once; y, dx and dz to x's type, dweight to weight's.
// Deterministic: dweight is summed over fixed chunks of rows, in order, however many threads there are.
#pragma once

#include "kernels/mamba/mamba.h"

namespace mamba::gated_norm {

constexpr int64_t kLeastRows = 16, kMaxChunks = 64;  // of the sums of dweight

struct Problem {
  int64_t rows, cols, group;  // cols: a multiple of group
  DType type;                 // of x, z, y, dy, dx, dz
  const void *x, *z;          // [rows, cols], rows a stride apart
  int64_t x_stride, z_stride;
  const float* weight;  // [cols]
  float eps;
  bool norm_first;

  int64_t chunk() const {  // rows
    const int64_t even = (rows + kMaxChunks - 1) / kMaxChunks;
    return even > kLeastRows ? even : kLeastRows;
  }
  int64_t chunks() const { return (rows + chunk() - 1) / chunk(); }
};

struct Forward {
  Problem of;
  void* y;      // [rows, cols]
  float* rstd;  // [rows, cols / group] or null
};

struct Backward {
  Problem of;
  const void* dy;  // [rows, cols], rows a stride apart
  int64_t dy_stride;
  const float* rstd;  // [rows, cols / group]
  void *dx, *dz;      // [rows, cols]
  float* partial;     // [chunks, cols]
  void* dweight;      // [cols]
  DType weight_type;
};

// forward: rows [begin, end); backward: chunks; sum_partial: columns.
struct Table {
  void (*forward)(const Forward&, int64_t begin, int64_t end);
  void (*backward)(const Backward&, int64_t begin, int64_t end);
  void (*sum_partial)(const Backward&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace mamba::gated_norm
