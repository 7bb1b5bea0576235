// Attention of query rows over key rows, for each of `heads` query heads; query head h reads key head h / (heads /
// key_heads). Row i stands at key position i + n, n = key_rows - query_rows: the last query row sees the last key.
//
//   x_ij = scale * q_i . k_j                     y = softcap > 0 ? softcap * tanh(x / softcap) : x
//   A(i) = the keys j that row i sees: j <= i + n where causal, i + n - left <= j <= i + n + right in a window
//   lse_i = log(sum over A(i) of exp(y_ij), plus exp(sink of the head))      p_ij = exp(y_ij - lse_i)
//   o_i = sum over A(i) of p_ij v_j
// A row that sees nothing: o = 0; lse = -infinity, or its sink.
//
// Casting: scores, sums and lse are float32. p is rounded to the inputs' type before it multiplies v, not yet divided
// by its sum (the sum is of unrounded p); o is divided in float32 and rounded once.
//
// Deterministic: a row's sums go over the keys in one fixed order of tiles, whatever else is computed.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace attention {

using kernels::DType;

// Three distances in elements; within a row of `dim` numbers they are 1 apart.
struct Strides {
  int64_t batch, row, head;
};

constexpr int64_t kNoLimit = -1;  // of a window's side

struct Forward {
  void* out;           // [batch, query_rows, heads, value_dim] contiguous
  float* lse;          // [batch, heads, query_rows], natural logarithm, or null
  const void* q;       // [batch, query_rows, heads, dim]
  const void* k;       // [batch, key_rows, key_heads, dim]
  const void* v;       // [batch, key_rows, key_heads, value_dim]
  const float* sinks;  // [heads] or null
  Strides q_strides, k_strides, v_strides;
  int64_t batch, query_rows, key_rows, heads, key_heads, dim, value_dim;
  int64_t window_left, window_right;  // keys before and after a row's own position, or kNoLimit. Causal: right is 0
  float scale, softcap;
  DType dtype;
};

}  // namespace attention
