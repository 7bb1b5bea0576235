// Cross-entropy of rows of logits, forward and backward; linear cross-entropy is the same on chunks of rows.
//
//   u_j = z_j                                    softcap = 0
//   u_j = softcap tanh(z_j / softcap)            softcap > 0
//   lse = max + log_sum, log_sum = log sum_j e^(u_j - max)        p_j = e^((u_j - max) - log_sum)
//   row loss = s ((1 - eps) w_t (lse - u_t) + eps mean_j w_j (lse - u_j) + z_loss lse^2)
//     t = target, eps = label_smoothing, w = class_weight or all 1, s = p_t where token_scaling is asked for, else 1
//   rows with target == ignore_index have loss 0 and gradient 0
//   du_j = p_j ((1 - eps) w_t + eps mean w + 2 z_loss lse) - (1 - eps) w_t [j = t] - eps w_j / vocab
//   dz_j = g s du_j (1 - (u_j / softcap)^2)      g = the row's incoming gradient; s is a constant to it
//
// Casting: logits are read in their type; exponentials are summed in fp32, block by block with a running maximum; row
// losses are fp32, their sum is taken in double, in row order; dz is rounded once. An lse is kept as its two parts:
// where logits have a large offset in common, their fp32 sum would lose the smaller one, and all of a row's p would be
// off by the same factor.
#pragma once
#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace loss {

using kernels::DType;

struct LossRows {
  DType dtype;            // of logits and dlogits
  const void* logits;     // [rows, vocab], rows logits_stride apart
  int64_t logits_stride;  // in elements
  void* dlogits;          // [rows, vocab]; may be logits itself; null: no gradient is made
  int64_t dlogits_stride;
  const int64_t* target;  // [rows]
  float* loss;            // [rows] or null
  float* lse;             // [rows, 2], max and log_sum; read where lse_known, else written; may be null in a forward
  const float* dloss;     // [rows] scales each row's gradient; null: 1
  float grad_scale;       // scales every gradient
  bool lse_known;
  int64_t rows, vocab;
  int64_t ignore_index;
  float label_smoothing, softcap, z_loss;
  const float* class_weight;  // [vocab]; null: all 1
  const float* class_sum;     // their sum, one number; read where labels are smoothed too
  bool token_scaling;
};

// sum[j] += scale * sum over rows of x[row, j], in row order, for j in [begin, end): the gradient of a bias.
struct ColumnSum {
  DType dtype;
  const void* x;  // [rows, cols], rows stride apart
  int64_t stride, rows;
  float* sum;  // [cols]
  float scale;
};

// sum[i] += scale x[i], or sum[i] = scale x[i], for i in [begin, end): a low-precision product joins its fp32
// accumulator.
struct Accumulate {
  DType dtype;
  const void* x;
  float* sum;
  float scale;
  bool first;  // sum holds nothing yet
};

// Linear cross-entropy holds the logits of so many rows at once: 512 in float32, 1024 in 16 bits (100 MB at a 49k
// vocabulary), up to half as many again so that the chunks are equal; or as many as fit into `bytes`, where given.
// Fewer cost speed: at 256 rows a float32 GEMM loses a quarter of it to reading and packing the weight. Eager torch
// holds all rows, three to eight times.
constexpr int64_t kChunkRows = 512;
inline int64_t chunk_rows(int64_t rows, int64_t element_size, int64_t vocab = 0, int64_t bytes = 0) {
  const int64_t row = vocab * element_size, fit = row > 0 && bytes > row ? bytes / row : 1;
  const int64_t wanted = bytes > 0 ? fit : kChunkRows * 4 / element_size;
  const int64_t nearest = (rows + (bytes > 0 ? wanted - 1 : wanted / 2)) / wanted, chunks = nearest > 1 ? nearest : 1;
  return (rows + chunks - 1) / chunks;
}

struct Table {
  void (*rows)(const LossRows&, int64_t begin, int64_t end);  // losses and lse where wanted, then gradients
  void (*column_sum)(const ColumnSum&, int64_t begin, int64_t end);
  void (*accumulate)(const Accumulate&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace loss
