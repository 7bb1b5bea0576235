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

constexpr int kMostFewRows = 16, kMostWeights = 3;

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
  FewRowsWeight w[kMostWeights];
  int weights = 1;
  FewRowsAct act = FewRowsAct::kNone;
  const void* residual = nullptr;  // [rows, out], added to the rounded product; or null
  int64_t residual_stride = 0;
  void* out;  // [rows, all weights' rows, or gate's]
  int64_t out_stride;
  // The launch before this one wrote none of the weights, so that they may be read before its end.
  bool weights_are_old = false;
};

// Whether the kernel takes such memory: rows that begin at vectors of 16 bytes, whole vectors long, less than 2^31
// numbers from one to the next, and where there is a norm all of x in shared memory.
inline bool fits_few_rows(const FewRows& a) {
  constexpr int kVector = 8, kMostShared = 144 << 10;
  constexpr int64_t kFarthest = (int64_t{1} << 31) - 1;
  const auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % kVector == 0;
  };
  bool fits = a.dtype != DType::kFloat32 && a.rows >= 1 && a.rows <= kMostFewRows && a.in > 0 && a.in % kVector == 0 &&
              aligned(a.x, a.rows > 1 ? a.x_stride : 0) && (a.rows == 1 || a.x_stride <= kFarthest);
  for (int i = 0; i < a.weights; ++i) fits = fits && aligned(a.w[i].data, a.w[i].rows > 1 ? a.w[i].stride : 0);
  if (a.norm == nullptr) return fits;
  return fits && aligned(a.norm, 0) && (int64_t{a.rows} * (a.in + 32) + a.in) * 2 <= kMostShared;
}

}  // namespace kernels::gpu
