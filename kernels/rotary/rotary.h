// Rotary position embedding of queries and keys, forward and backward.
//
//   r = rotary_dim, h = r / 2; a head's vector x has dim >= r elements, the last dim - r of them pass through.
//   half (Llama):        pair (a, b) = (i, i + h), tables c1 = cos[i], s1 = sin[i], c2 = cos[i + h], s2 = sin[i + h]
//   interleaved (GPT-J): pair (a, b) = (2 i, 2 i + 1), c1 = c2 = cos[i], s1 = s2 = sin[i]
//   forward    y[a] = x[a] c1 - x[b] s1          y[b] = x[b] c2 + x[a] s2
//   backward  dx[a] = dy[a] c1 + dy[b] s2       dx[b] = dy[b] c2 - dy[a] s1
// Backward is the forward loop with (s1, s2) replaced by (-s2, -s1): nothing is assumed about the two halves of the
// tables being equal. A table of width h (half of r) serves both members of a pair.
//
// Casting: x and tables are read in their own types, everything is computed in fp32, and y is rounded once. Eager
// transformers rounds both products and the sum to x's type; the difference is below one unit of the last place.
#pragma once
#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace rotary {

using kernels::DType;

struct RotaryTensor {
  const void* x;  // [batch, heads, time, dim], any strides
  void* y;        // the same shape; may be x itself
  int64_t heads;
  int64_t x_stride[4];  // in elements
  int64_t y_stride[4];
};

struct RotaryArgs {
  DType dtype;        // of x and y
  DType table_dtype;  // of cos and sin
  RotaryTensor q, k;
  const void* cos;                       // [1 or batch, time, rotary_dim or rotary_dim / 2], last stride 1
  const void* sin;                       // as cos
  int64_t cos_stride[2], sin_stride[2];  // of batch (0 where broadcast) and time
  int64_t batch, time, dim, rotary_dim;
  bool half_table;  // the tables are rotary_dim / 2 wide
  bool interleaved;
  bool backward;
};

// Positions handled together: their tables are converted to fp32 once and serve all heads of q and k.
constexpr int64_t kRotaryBlock = 8;

inline int64_t rotary_blocks(const RotaryArgs& a) { return a.batch * ((a.time + kRotaryBlock - 1) / kRotaryBlock); }

struct Table {
  // Blocks [begin, end) of rotary_blocks(): any partition over threads gives the same bits.
  void (*rotate)(const RotaryArgs&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace rotary
