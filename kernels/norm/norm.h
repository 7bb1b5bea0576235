// RMSNorm, RMSNorm after a residual addition, LayerNorm over the last dimension. Statistics and sums are float32.
//
// RMSNorm      rstd = 1 / sqrt(mean(x^2) + eps),   n = x * rstd,   y = n * scale,   scale = weight + offset
//   backward   g = dy * scale,   dx = rstd * (g - n' * mean(g * n')),   dweight = sum over rows of dy * n
//              n': n unrounded
// AddRMSNorm   h = x + residual rounded to x's type, y = RMSNorm(h)
//   backward   dx = RMSNorm's dx at h, plus dh: for x and for residual
// LayerNorm    y = (x - mean) * rstd * weight + bias,   rstd = 1 / sqrt(variance + eps), variance over n, not n - 1
//   backward   g = dy * weight,   dx = rstd * (g - mean(g) - n * mean(g * n)),   dweight = sum dy * n,   dbias = sum dy
//
// Casting (what is rounded, and to what):
//   llama   n to x's type; weight + offset and y to promote(x, weight)
//           transformers' LlamaRMSNorm, Liger's "llama"
//   gemma   nothing but y, to x's type; weight + offset in float32
//           transformers' GemmaRMSNorm, Liger's "gemma"
//   none    weight, weight + offset, n and y to x's type
//           Liger's "none"
//
// Deterministic: dweight is summed over fixed chunks of rows, in order, however many threads there are.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace norms {  // not norm: CUDA has a function of that name

using kernels::DType;

struct Scale {         // float32 scale from weight: round_after(round_before(weight) + offset)
  float* scale;        // [cols]
  const void* weight;  // [cols]
  DType weight_dtype, before, after;
  float offset;
};

struct RmsNormForward {
  void* y;               // [rows, cols] y_dtype
  void* h;               // [rows, cols] dtype, only with residual
  float* rstd;           // [rows] or null
  const void* x;         // [rows, cols] dtype, rows x_stride apart
  const void* residual;  // [rows, cols] dtype, rows residual_stride apart, or null
  const float* scale;    // [cols]
  int64_t cols, x_stride, residual_stride;
  float eps;
  DType dtype, y_dtype;
  bool round_n, stream;
};

struct RmsNormBackward {
  void* dx;                                                   // [rows, cols] dtype
  float* partial;                                             // [chunks, cols] sums of dy * n
  const void* dy;                                             // [rows, cols] dy_dtype, rows dy_stride apart
  const void* dh;                                             // [rows, cols] dtype, rows dh_stride apart, or null
  const void* x;                                              // [rows, cols] dtype, rows x_stride apart
  const float* scale;                                         // [cols]
  const float* rstd;                                          // [rows]
  int64_t rows, cols, chunk, dy_stride, dh_stride, x_stride;  // chunk: rows a chunk
  DType dtype, dy_dtype;
  bool round_n, stream;
};

struct LayerNormForward {
  void* y;              // [rows, cols] dtype
  float *mean, *rstd;   // [rows] or null
  const void* x;        // [rows, cols] dtype, rows x_stride apart
  const float* weight;  // [cols]
  const float* bias;    // [cols] or null
  int64_t cols, x_stride;
  float eps;
  DType dtype;
  bool stream;
};

struct LayerNormBackward {
  void* dx;                              // [rows, cols] dtype
  float *partial_weight, *partial_bias;  // [chunks, cols] sums of dy * n, of dy
  const void* dy;                        // [rows, cols] dtype, rows dy_stride apart
  const void* x;                         // [rows, cols] dtype, rows x_stride apart
  const float* weight;                   // [cols]
  const float *mean, *rstd;              // [rows]
  int64_t rows, cols, chunk, dy_stride, x_stride;
  DType dtype;
  bool stream;
};

struct ColumnSum {       // out[c] = sum over chunks of partial[chunk, c], in order
  void* out;             // [cols] dtype
  const float* partial;  // [chunks, cols]
  int64_t chunks, cols;
  DType dtype;
};

// Each works on rows (backward: chunks of rows; scale, column_sum: columns) [begin, end).
struct Table {
  void (*scale)(const Scale&, int64_t begin, int64_t end);
  void (*rms_norm_forward)(const RmsNormForward&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNormBackward&, int64_t begin, int64_t end);
  void (*layer_norm_forward)(const LayerNormForward&, int64_t begin, int64_t end);
  void (*layer_norm_backward)(const LayerNormBackward&, int64_t begin, int64_t end);
  void (*column_sum)(const ColumnSum&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace norms
