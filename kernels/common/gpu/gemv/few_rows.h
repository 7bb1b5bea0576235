// Products of up to 16 rows with weights that are read once: what a decode step consists of. Host and device see this.
//
//   out = epilogue(normed(x) w^T + bias)     x: [rows, in], w: [out, in], all of one 16-bit dtype, float32 sums
//
// Several weights may stand behind one another as if they were one (queries, keys and values), or gate and up side by
// side, of which the epilogue makes act(gate) * up.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace kernels::gpu {

constexpr int kMaxFewRows = 16, kMaxWeights = 3;
constexpr int kFewPad = 32;  // elements between rows of x in shared memory, against bank conflicts
constexpr int kFewWarps = 16;
constexpr int kFewTile = 8;   // outputs of a tile: the n side of an mma
constexpr int kFewUnit = 64;  // columns that a warp reads of a tile at once: 2 vectors of 16 bytes a thread

enum class FewRowsAct { kNone, kSilu, kGeluTanh };  // not kNone: w[0] is gate, w[1] is up

struct FewRowsWeight {
  const void* data = nullptr;  // [rows, in]
  const void* bias = nullptr;  // [rows], or null
  int64_t stride = 0;
  int rows = 0;
};

struct FewRows {
  DType dtype;
  const void* x;  // [rows, in]
  int64_t x_stride;
  int rows, in;
  // Llama's RMSNorm of x before the product: (x * rstd rounded) * norm, rounded. null: none
  const void* norm = nullptr;
  float eps = 0;
  FewRowsWeight w[kMaxWeights];
  int weights = 1;
  FewRowsAct act = FewRowsAct::kNone;
  const void* residual = nullptr;  // [rows, out], added to the rounded product; or null
  int64_t residual_stride = 0;
  void* out;  // [rows, all weights' rows, or gate's]
  int64_t out_stride;
  // The launch before this one wrote none of the weights, so that they may be read before its end.
  bool weights_are_old = false;
};

// The most rows that the kernel takes of such weights, whatever x is; 0: none. Rows of x and of weights are whole
// vectors of 16 bytes, weights begin at such, and where there is a norm all of x lies in shared memory, with the norm's
// weight.
inline int max_few_rows(const FewRows& a) {
  constexpr int64_t kVector = 8, kMaxShared = 144 << 10;
  const auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % kVector == 0;
  };
  bool fits = a.dtype != DType::kFloat32 && a.in > 0 && a.in % kVector == 0 && aligned(a.norm, 0);
  for (int i = 0; i < a.weights; ++i) fits = fits && aligned(a.w[i].data, a.w[i].rows > 1 ? a.w[i].stride : 0);
  if (!fits || a.norm == nullptr) return fits ? kMaxFewRows : 0;
  const int64_t rows = (kMaxShared / 2 - a.in) / (a.in + kFewPad);
  return int(rows < 0 ? 0 : rows < kMaxFewRows ? rows : kMaxFewRows);
}

inline int few_rows_tiles(const FewRows& a) {
  int tiles = 0;
  for (int i = 0; i < a.weights; ++i) tiles += (a.w[i].rows + kFewTile - 1) / kFewTile;
  return tiles;
}

// Of columns that all of a block's warps read at once: 1024.
inline int few_rows_units(const FewRows& a) { return (a.in + kFewUnit * kFewWarps - 1) / (kFewUnit * kFewWarps); }

// Are there so few columns that a warp's part of x stays in its registers for all tiles (few_rows_held.cuh)?
inline bool keeps_x(const FewRows& a) {
  const int units = few_rows_units(a);
  return units == 1 || (units == 2 && (a.norm == nullptr || a.rows <= 8)) ||
         (units == 3 && a.norm == nullptr && a.act == FewRowsAct::kNone);
}

// Is the kernel faster than a library's product? Weights cost both the same. But with more columns than one unit a
// block multiplies all of x again for each of its tiles, at some 100 GB/s: from 128 KiB on that takes longer than what
// the library's launch costs more (an H200, docs/notes/decode_wide.md). Up to 4 rows it is little in any case.
inline bool few_rows_pay(const FewRows& a, int multiprocessors) {
  constexpr int kAlways = 4;
  constexpr int64_t kMuch = 128 << 10;
  const int64_t tiles = few_rows_tiles(a), each = (tiles + multiprocessors - 1) / multiprocessors;
  return a.rows <= kAlways || few_rows_units(a) == 1 || each * a.rows * a.in * 2 <= kMuch;
}

// Rows of x are less than 2^31 elements apart.
inline bool fits_few_rows(const FewRows& a) {
  constexpr int64_t kFarthest = (int64_t{1} << 31) - 1;
  const bool x_fits =
      reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && (a.rows == 1 || (a.x_stride % 8 == 0 && a.x_stride <= kFarthest));
  return a.rows >= 1 && a.rows <= max_few_rows(a) && x_fits;
}

}  // namespace kernels::gpu
