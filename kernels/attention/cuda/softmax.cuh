// The softmax of rows whose scores come tile by tile, in the layout of wgmma's sums (kernels/common/gpu/ptx/wgmma.cuh):
// a thread holds two rows, four neighbouring threads share them.
#pragma once

#include "kernels/attention/cuda/tiles.h"
#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/reduce/softmax_state.cuh"

namespace attention::gpu {

using namespace kernels;
using namespace kernels::gpu;

constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;

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

// Softmax states of two rows. Exponentials are powers of two: one multiply-add and one instruction each.
//
// The maximum only keeps exponentials in range, so that an old one serves as long as the new scores are not far above
// it: it moves when it is behind by more than 2^kSlack. Mostly it does not, and the outputs need not be multiplied: an
// eighth of the instructions of a step.
struct RowSoftmax {
  static constexpr float kSlack = 8.f;
  float scale;                        // scores * scale are exponents of two
  SoftmaxState<Exp2Approx> state[2];  // max: of scores; sum: of this thread's columns only

  RowSoftmax() = default;
  __device__ __forceinline__ explicit RowSoftmax(float scale) : scale(scale) {}

  // Scores become exponentials; what was summed before is to be multiplied by `shrink`.
  template <int N>
  __device__ __forceinline__ void add(float (&s)[N], float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float max = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int i = 4 + 2 * r; i < N; i += 4) max = fmaxf(max, fmaxf(s[i], s[i + 1]));
      max = quad_max(max);
      if (!((max - state[r].max) * scale > kSlack)) max = state[r].max;
      const float base = exponent_of(max);
      shrink[r] = shrink_to(r, max);
      state[r].max = max;
      float total = state[r].sum * shrink[r];
#pragma unroll
      for (int i = 2 * r; i < N; i += 4) {
        s[i] = exp2_approx(s[i] * scale - base);
        s[i + 1] = exp2_approx(s[i + 1] * scale - base);
        total += s[i] + s[i + 1];
      }
      state[r].sum = total;
    }
  }

  // Goes on with another maximum of row r: what was summed before is to be multiplied by what comes back.
  __device__ __forceinline__ float move_to(int r, float max) {
    const float shrink = shrink_to(r, max);
    state[r].max = max, state[r].sum *= shrink;
    return shrink;
  }

  // At the end: what the outputs are to be multiplied by, and the logarithm of the sum.
  __device__ __forceinline__ void finish(int r, const float* sink, float& factor, float& lse) {
    float total = quad_sum(state[r].sum), max = state[r].max * scale;
    float shrink = 1.f;
    if (sink != nullptr) {  // one more score, without a value. The larger maximum: sink - maximum may be beyond exp
      const float s = *sink * kLog2e, larger = fmaxf(max, s), base = finite_or_zero(larger);
      shrink = exp2_approx(max - base);
      total = total * shrink + exp2_approx(s - base);
      max = larger;
    }
    factor = total == 0.f ? 0.f : shrink * rcp_approx(total);  // NaN stays NaN
    lse = total == 0.f ? -INFINITY : (max + log2f(total)) * kLn2;
  }

 private:
  // The exponent of a row's maximum; 0 where it has seen nothing yet: infinity - infinity would be NaN.
  __device__ __forceinline__ float exponent_of(float max) const { return max == -INFINITY ? 0.f : max * scale; }
  __device__ __forceinline__ float shrink_to(int r, float max) const {
    return max == state[r].max ? 1.f : exp2_approx(state[r].max * scale - exponent_of(max));
  }
};

}  // namespace attention::gpu
