// The softmax of rows whose scores come tile by tile, in the layout of wgmma's sums (kernels/common/gpu/wgmma.cuh): a
// thread holds two rows, four neighbouring threads share them.
#pragma once

#include "kernels/attention/tiles.h"
#include "kernels/common/gpu/device.cuh"

namespace attention::gpu {

using namespace kernels;
using namespace kernels::gpu;

constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, 1));
  return fmaxf(v, __shfl_xor_sync(kAllLanes, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(kAllLanes, v, 1);
  return v + __shfl_xor_sync(kAllLanes, v, 2);
}

// The two rows' column of score number i: this, plus what depends on the thread (lane % 4 * 2).
__device__ constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }

// Scores that a row does not see become -infinity. `row` is the thread's first one, `column` its first key. kRight,
// kLeft: which of a row's ends may be among these keys.
template <bool kLeft, bool kRight = true, int N>
__device__ __forceinline__ void mask_scores(float (&s)[N], const Band& band, int row, int column) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int after = min(band.keys, row + 8 * r + band.after) - column;
    const int before = row + 8 * r + band.before - column;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i / 2 % 2 != r) continue;
      if (kRight && column_of(i) >= after) s[i] = -INFINITY;
      if (kLeft && column_of(i) < before) s[i] = -INFINITY;
    }
  }
}

// Running maximum and sum of two rows. Exponentials are powers of two: one multiply-add and one instruction each.
//
// The maximum only keeps exponentials in range, so that an old one serves as long as the new scores are not far above
// it: it moves when it is behind by more than 2^kSlack. Mostly it does not, and the outputs need not be multiplied: an
// eighth of the instructions of a step.
struct RowSoftmax {
  static constexpr float kSlack = 8.f;
  float scale;            // scores * scale are exponents of two
  float most[2], sum[2];  // sum: of this thread's columns only

  RowSoftmax() = default;
  __device__ __forceinline__ explicit RowSoftmax(float scale) : scale(scale), most{-INFINITY, -INFINITY}, sum{0, 0} {}

  // Scores become exponentials; what was summed before is to be multiplied by `shrink`.
  template <int N>
  __device__ __forceinline__ void add(float (&s)[N], float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int i = 4 + 2 * r; i < N; i += 4) largest = fmaxf(largest, fmaxf(s[i], s[i + 1]));
      largest = quad_max(largest);
      if (!((largest - most[r]) * scale > kSlack)) largest = most[r];
      // A row that has seen nothing yet: infinity - infinity would be NaN.
      const float base = largest == -INFINITY ? 0.f : largest * scale;
      shrink[r] = largest == most[r] ? 1.f : exp2_fast(most[r] * scale - base);
      most[r] = largest;
      float total = sum[r] * shrink[r];
#pragma unroll
      for (int i = 2 * r; i < N; i += 4) {
        s[i] = exp2_fast(s[i] * scale - base);
        s[i + 1] = exp2_fast(s[i + 1] * scale - base);
        total += s[i] + s[i + 1];
      }
      sum[r] = total;
    }
  }

  // Goes on with another maximum of row r: what was summed before is to be multiplied by what comes back.
  __device__ __forceinline__ float move_to(int r, float largest) {
    const float base = largest == -INFINITY ? 0.f : largest * scale;
    const float shrink = largest == most[r] ? 1.f : exp2_fast(most[r] * scale - base);
    most[r] = largest, sum[r] *= shrink;
    return shrink;
  }

  // At the end: what the outputs are to be multiplied by, and the logarithm of the sum.
  __device__ __forceinline__ void finish(int r, const float* sink, float& factor, float& lse) {
    float total = quad_sum(sum[r]), largest = most[r] * scale;
    float shrink = 1.f;
    if (sink != nullptr) {  // one more score, without a value. The larger maximum: sink - maximum may be beyond exp
      const float s = *sink * kLog2e, larger = fmaxf(largest, s), base = larger == -INFINITY ? 0.f : larger;
      shrink = exp2_fast(largest - base);
      total = total * shrink + exp2_fast(s - base);
      largest = larger;
    }
    factor = total == 0.f ? 0.f : shrink * reciprocal(total);  // NaN stays NaN
    lse = total == 0.f ? -INFINITY : (largest + log2f(total)) * kLn2;
  }
};

}  // namespace attention::gpu
