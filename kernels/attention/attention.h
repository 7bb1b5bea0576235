// Attention of query rows over key rows, for each of `heads` query heads; query head h reads key head h / (heads /
// key_heads). Row i stands at key position i + n, n = key_rows - query_rows: the last query row sees the last key.
//
//   x_ij = scale * q_i . k_j                     y = softcap > 0 ? softcap * tanh(x / softcap) : x
//   y_ij -= slope * |i + n - j|                  where there are slopes (ALiBi)
//   A(i) = the keys j that row i sees: j <= i + n where causal, i + n - left <= j <= i + n + right in a window,
//          j / chunk == (i + n) / chunk where there are chunks
//   lse_i = log(sum over A(i) of exp(y_ij), plus exp(sink of the head))      p_ij = exp(y_ij - lse_i)
//   o_i = sum over A(i) of p_ij v_j
// A row that sees nothing: o = 0; lse = -infinity, or its sink.
//
// Backward, from do_i and, where lse itself is used, dlse_i:
//   delta_i = do_i . o_i - dlse_i                 dx_ij = p_ij (do_i . v_j - delta_i) dy/dx
//   dy/dx = 1 - (y_ij / softcap)^2, y before slopes
//   dq_i = scale * sum_j dx_ij k_j                dk_j = scale * sum_i dx_ij q_i          dv_j = sum_i p_ij do_i
//   dsink = -sum_i exp(sink - lse_i) delta_i      (dk, dv also over the query heads of a group; dsink over the batch)
//
// Casting: scores, sums and lse are float32. p is rounded to the inputs' type before it multiplies v, not yet divided
// by its sum (the sum is of unrounded p); o is divided in float32 and rounded once. Backward rounds p and dx to the
// inputs' type before they are multiplied, sums in float32 and rounds gradients once.
//
// Deterministic: a row's sums go over the keys in one fixed order of tiles, whatever else is computed; sums over rows
// likewise. dq on a GPU only where it is asked for (Backward::deterministic).
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace attention {

using kernels::DType;

// Three distances in elements; within a row of `dim` numbers they are 1 apart. Of packed sequences `batch` is not read.
struct Strides {
  int64_t batch, row, head;
};

constexpr int64_t kNoLimit = -1;  // of a window's side

// What is attended to what.
//
// Packed sequences: where query_starts is given, q and all that is like it are [query_rows, ...] of all sequences one
// after the other, and k and v [key_rows, ...]; sequence b has the rows starts[b] to starts[b + 1], and of its keys
// only the first keys_used[b]. starts[0] is 0; equal starts are an empty sequence. Rows behind starts[batch] and keys
// that are not used get zeros: out, and gradients. lse of such rows is -infinity.
struct Problem {
  int64_t batch, query_rows, key_rows, heads, key_heads, dim, value_dim;
  int64_t window_left = kNoLimit, window_right = kNoLimit;  // keys before and after a row's own. Causal: right is 0
  float scale, softcap = 0;
  DType dtype;
  int64_t chunk = 0;              // keys a chunk; 0: none
  const float* sinks = nullptr;   // [heads] or null
  const float* slopes = nullptr;  // [heads], or [batch, heads] with the stride; or null
  int64_t slopes_batch_stride = 0;
  const int32_t* query_starts = nullptr;  // [batch + 1], all three where the tensors are: on the device
  const int32_t* key_starts = nullptr;    // [batch + 1]
  const int32_t* keys_used = nullptr;     // [batch] or null: all
};

struct Forward {
  Problem problem;
  void* out;      // [batch, query_rows, heads, value_dim] contiguous
  float* lse;     // [batch, heads, query_rows], packed [heads, query_rows]; natural logarithm; or null
  const void* q;  // [batch, query_rows, heads, dim]
  const void* k;  // [batch, key_rows, key_heads, dim]
  const void* v;  // [batch, key_rows, key_heads, value_dim]
  Strides q_strides, k_strides, v_strides;
};

struct Backward {
  Problem problem;
  void* dq;  // as q, k and v, contiguous; every element is written
  void* dk;
  void* dv;
  float* dsinks;     // [heads], or null where there are no sinks
  const void* dout;  // as out
  const void* q;
  const void* k;
  const void* v;
  const void* out;    // forward's
  const float* lse;   // forward's
  const float* dlse;  // as lse, or null
  Strides dout_strides, q_strides, k_strides, v_strides, out_strides;
  bool deterministic;  // the same bits of dq at each call
};

// A step of generation: query_rows new rows of each sequence over a cache of its keys and values, to which its new ones
// are written first. Sequence b has lengths[b] keys before, lengths[b] + new_rows in all; the last query row sees the
// last one. A length below 0 is an entry that only fills the batch: no keys, and nothing of the cache is touched.
// problem.key_rows: the most keys that a sequence may have, so that the work can be divided without its length; more
// are not there: neither written nor read.
struct Decode {
  Problem problem;             // not packed
  void* out;                   // [batch, query_rows, heads, value_dim] contiguous
  float* lse;                  // [batch, heads, query_rows] or null
  const void* q;               // [batch, query_rows, heads, dim]
  void* k_cache;               // [caches, key_rows, key_heads, dim], or [pages, page_rows, key_heads, dim]
  void* v_cache;               // the same of value_dim; or k_cache with its strides: the keys' first numbers, v_new too
  const void* k_new;           // [batch, new_rows, key_heads, dim], or null: the cache is only read
  const void* v_new;           // [batch, new_rows, key_heads, value_dim], or null
  const int32_t* lengths;      // [batch]
  const int32_t* block_table;  // [batch, ...]: key j of sequence b is in page block_table[b][j / page_rows]; or null.
                               // What lies behind a sequence's last page is not read
  const int32_t* cache_index;  // [batch]: sequence b has cache cache_index[b]; or null: b. Not with a block table
  int64_t new_rows, page_rows, block_table_stride;
  int64_t splits = 0;  // parts of a sequence's keys that are computed side by side; 0: by shapes
  Strides q_strides, k_cache_strides, v_cache_strides, k_new_strides, v_new_strides;  // of caches, batch: a page
};

}  // namespace attention
