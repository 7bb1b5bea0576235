// One decoder layer of Llama's kind for the few new tokens of a step, one of each row:
//
//   n = norm(x);  q, k, v = n Wq^T + bq, n Wk^T + bk, n Wv^T + bv       x: [rows, hidden]
//   q, k = rotary(head_norm(q)), rotary(head_norm(k))                   head norms where the layer has them
//   cache[position] = k, v;  a = softmax(scale q K^T) V                 over the keys that the position sees
//   h = x + a Wo^T + bo                                                 h: [rows, hidden]
//   out = h + (act(norm(h) Wgate^T) * (norm(h) Wup^T)) Wdown^T
//
// Casting: norms as Llama's, x * rstd rounded before the weight; products, scores and sums in float32. Rounded to x's
// dtype is what a stock layer hands on: the norms' results, q, k and v before and behind the rotary embedding, a, each
// product, act * up, h, out. Sums have a fixed order: the same bits in each run. Weights may be packed (packing.h):
// they are not rounded; on a GPU all of them.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/packing.h"

namespace decode {

using kernels::DType;

constexpr int kMaxRows = 16;

enum class Act : uint8_t { kSilu, kGeluTanh };

struct Weight {
  const void* data;     // [out, in]
  const void* bias;     // [out], or null
  int64_t out, stride;  // packed: in bytes
  kernels::Packing packing = kernels::Packing::kNone;
};

struct CacheRows {  // of keys or values
  void* data;       // [batch, capacity, kv_heads, head_dim]
  int64_t batch, row, head;
};

struct Layer {
  DType dtype;
  const void* x;  // [rows, hidden], contiguous, as all that follow but the caches and weights
  int64_t rows, hidden;
  const void *input_norm, *post_norm;  // [hidden]
  float eps;
  Weight q, k, v, o, gate, up, down;
  const void *q_norm, *k_norm;  // [head_dim], or null
  float head_eps;
  int64_t heads, kv_heads, head_dim;
  const void *cos, *sin;  // [rows or 1, head_dim]
  int64_t rope_stride;    // between rows; 0: one for all
  CacheRows keys, values;
  const int64_t* position;      // of the new tokens: one for all rows, or [rows]
  int64_t position_stride = 0;  // between rows; 0: one for all
  int64_t capacity, window;     // tokens before it that a token sees; -1: all
  float scale;
  Act act;
  // What one part hands to the next.
  void* qkv;                      // [rows, (heads + 2 kv_heads) * head_dim]
  void* attended;                 // [rows, heads * head_dim]
  void* h;                        // [rows, hidden]
  void* gated;                    // [rows, ffn]
  void* out;                      // [rows, hidden]
  bool prefetch_weights = false;  // the launch before the layer's first, if there is one, wrote none of its weights
};

// What stands between a layer's products and its attention, of any number of rows: norms of heads and the rotary
// embedding as above, the new keys and values written into the cache. q, k, v: [rows, heads * head_dim], as the
// products left them.
struct Heads {
  DType dtype;
  int64_t rows, heads, kv_heads, head_dim;
  const void *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;  // between rows
  const void *q_norm, *k_norm;           // [head_dim], or null
  float eps;
  const void *cos, *sin;  // [rows or 1, head_dim]
  int64_t rope_stride;    // between rows; 0: one for all
  CacheRows keys, values;
  const int64_t* position;  // as a layer's
  int64_t position_stride;
  int64_t capacity;
  void* out;  // the queries, [rows, heads, head_dim]
};

// What a step of generation begins with: the last tokens' embeddings, and where the new ones stand. The count of tokens
// is raised by one.
struct Inputs {
  int64_t rows;
  const int64_t* ids;     // [rows]
  const void* embedding;  // [ids, width], rows without gaps
  int64_t known, width;   // width: bytes of a row
  const void* rope;       // [places, rope_width]: cos and sin of a place side by side
  int64_t places, rope_width;
  int64_t* length;  // one number: tokens so far
  void* x;          // [rows, width]
  void* row;        // of rope, of this place
  int64_t* place;   // the length before
};

}  // namespace decode
