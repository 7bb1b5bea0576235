// The same formulas on a GPU: loss.h's arguments with pointers to its memory. Launches on `stream` of the current
// device, none of which waits for another device's result; errors are thrown.
//
// Targets are on the GPU, and reading them on the host would make it wait. So a target outside of the vocabulary is
// found there: its row's loss is nan, and reduce() stops the GPU by a device-side assertion, as torch does. What
// depends on the number of valid rows stays on the GPU too.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/loss/loss.h"

namespace loss::cuda {

using kernels::Stream;

// Losses and lse where wanted, then gradients, times *scale where it is given. dloss: a number a row, or null.
void rows(const LossRows& a, const float* scale, Stream stream);

// The same of logits that lie transposed, [vocab, rows], their rows logits_stride apart, with gradients in their place:
// a whole number of kColumnRows rows, and neither token_scaling nor labels that are smoothed by class weights. scratch:
// room for column_scratch elements.
constexpr int64_t kColumnRows = 256;
int64_t column_scratch(const LossRows& a);
void columns(const LossRows& a, const float* scale, float* scratch, Stream stream);

struct Reduce {
  const float* row_loss;  // [rows]
  const int64_t* target;  // [rows]
  float* out;             // one number: the sum in double, in a fixed order; mean: over valid rows, nan without
  int64_t rows, vocab, ignore_index;
  bool mean;
};
// Of every forward, for its assertion: out null where nothing is to be summed.
void reduce(const Reduce& a, Stream stream);

struct Scale {
  const int64_t* target;  // [rows]
  const float* dloss;     // one number, or null: 1
  float* out;             // one number: dloss, divided by the number of valid rows where mean
  int64_t rows, ignore_index;
  bool mean;
};
void scale(const Scale& a, Stream stream);

// x *= *factor; a 0 stays 0 whatever the factor is. Not touched where the factor is 1.
void multiply(DType dtype, void* x, int64_t count, const float* factor, Stream stream);
void copy(void* to, const void* from, int64_t bytes, Stream stream);
void accumulate(const Accumulate& a, int64_t count, Stream stream);
void column_sum(const ColumnSum& a, int64_t cols, Stream stream);  // without a.scale

// Rows of logits that linear cross-entropy holds at once on a GPU, in at most `bytes` (or a tile's). Fewer rows are
// less memory and more passes over the weight's gradient: docs/notes/linear_cross_entropy.md has the plans and their
// times.
constexpr int64_t kChunkBytes = int64_t{256} << 20;
inline int64_t chunk_rows(int64_t rows, int64_t vocab, int64_t element_size, int64_t bytes = kChunkBytes) {
  constexpr int64_t kTile = 128;
  const int64_t fit = bytes / (vocab * element_size < 1 ? 1 : vocab * element_size) / kTile * kTile;
  const int64_t most = fit < kTile ? kTile : fit;
  if (rows <= most) return rows;
  const int64_t chunks = kernels::divide_up(rows, most);
  return kernels::divide_up(kernels::divide_up(rows, chunks), kTile) * kTile;
}

}  // namespace loss::cuda
