// Softmax and sparsemax of rows that are held in registers.
#pragma once

#include "kernels/common/gpu/reduce/max.cuh"
#include "kernels/common/gpu/tile/held_rows.cuh"
#include "kernels/probability/cuda/rows.cuh"
#include "kernels/probability/probability.h"

namespace probability::gpu {

// e^x of what a warp holds is made from the warp's own maximum; when the row's state is known, one factor makes
// probabilities of it. kKeep: it is kept until then, where registers are left, else made again.
template <class T, int kVectors, Hold kHold>
__global__ void __launch_bounds__(held_threads(kHold), held_blocks(kHold)) softmax_held(const Softmax a, int lanes) {
  constexpr int N = kPerVector<T>;
  constexpr bool kCoarse = sizeof(T) == 2, kKeep = kVectors <= 4 && kHold != Hold::kCluster;
  __shared__ typename RowReduction<kHold>::Memory memory;
  const HeldPosition<T, kVectors, kHold> p(a.rows, a.cols, lanes);
  RowReduction<kHold> row(memory, lanes);
  grid_dependency_wait();
  Pack<T, N> x[kVectors];
  fetch_row<T>(x, a.x, a.x_stride, p, kLowestWord<T>);
  SoftmaxState<> state[1];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) state[0].max = fmaxf(state[0].max, max_of(x[k]));
  forget_row(x);
  state[0].max = kHold == Hold::kGroups ? lanes_max(state[0].max, lanes) : warp_max(state[0].max);
  float e[kKeep ? kVectors : 1][N];
  const float own = state[0].max, from = finite_or_zero(own);
  const auto exponentials = [&](int k, float(&f)[N]) {
    unpack(x[k], f);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = softmax_exp<kCoarse>(f[i] - from);
  };
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float(&f)[N] = e[kKeep ? k : 0];
    exponentials(k, f);
#pragma unroll
    for (int i = 0; i < N; ++i) state[0].sum += f[i];
  }
  row.merge(state);
  const float factor = expf(own - finite_or_zero(state[0].max)) / state[0].sum;
  if constexpr (!kKeep) forget_row(x);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float(&f)[N] = e[kKeep ? k : 0];
    if constexpr (!kKeep) exponentials(k, f);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] *= factor;
    x[k] = pack<T>(f);
  }
  store_row<T>(a.out, p, x);
}

// A bound of the threshold from the largest element of each thread alone: with fewer elements it is lower, but close to
// the row's own where few elements are above it. `highest`: of this thread; relative to top.
struct Bound {
  float top, threshold, count;
};
template <class Sum, class Highest>
__device__ __forceinline__ Bound bound_of(float top, int each, const Sum& sum, const Highest& highest) {
  Bound found{top, -1.f, INFINITY};
  while (true) {
    float above[2] = {0.f, 0.f};
    for (int j = 0; j < each; ++j) {
      const float v = highest(j) - top;
      if (v > found.threshold) above[0] += v, above[1] += 1.f;
    }
    sum(above);
    const bool lower = above[1] < found.count;
    if (!__any_sync(kAllLanes, lower)) return found;  // a warp's rows go on together
    if (lower) found.threshold = (above[0] - 1.f) / above[1], found.count = above[1];
  }
}

template <class T, int kVectors, Hold kHold>
__global__ void __launch_bounds__(held_threads(kHold), held_blocks(kHold)) sparsemax_held(const Softmax a, int lanes) {
  constexpr int N = kPerVector<T>;
  __shared__ typename RowReduction<kHold>::Memory memory;
  __shared__ float highest[512];
  __shared__ Bound shared_bound;
  const HeldPosition<T, kVectors, kHold> p(a.rows, a.cols, lanes);
  RowReduction<kHold> row(memory, lanes);
  grid_dependency_wait();
  Pack<T, N> x[kVectors];
  fetch_row<T>(x, a.x, a.x_stride, p, kLowestWord<T>);
  float mine = -INFINITY;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) mine = fmaxf(mine, max_of(x[k]));
  Bound bound;
  if constexpr (kHold == Hold::kGroups) {
    bound = bound_of(
        lanes_max(mine, lanes), 1, [&](float(&v)[2]) { v[0] = lanes_sum(v[0], lanes), v[1] = lanes_sum(v[1], lanes); },
        [&](int) { return mine; });
  } else {
    highest[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
      const int each = int(blockDim.x) / 32;
      const auto of = [&](int j) { return highest[j * 32 + int(threadIdx.x)]; };
      float top = -INFINITY;
      for (int j = 0; j < each; ++j) top = fmaxf(top, of(j));
      const Bound found = bound_of(
          warp_max(top), each, [](float(&v)[2]) { v[0] = warp_sum(v[0]), v[1] = warp_sum(v[1]); }, of);
      if (threadIdx.x == 0) shared_bound = found;
    }
    __syncthreads();
    bound = shared_bound;
  }
  if constexpr (kHold == Hold::kCluster) {
    float both[2] = {bound.top, bound.top + bound.threshold};
    row.max(both);
    // A little lower than the sum and the difference may be off.
    bound = {both[0], fmaxf(-1.f, both[1] - both[0] - 1e-5f - 1e-6f * fabsf(both[0])), -1.f};
  }
  const float top = bound.top;
  float threshold = bound.threshold, before = INFINITY;
  while (true) {
    float above[2] = {0.f, 0.f};  // their sum and their number
    if (mine - top > threshold) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        float f[N];
        force_reunpack(x[k]);
        unpack(x[k], f);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float v = f[i] - top;
          if (v > threshold) above[0] += v, above[1] += 1.f;
        }
      }
    }
    row.sum(above);
    // Not where the bound's elements are all that there are.
    const bool lower = above[1] < before && !(before == INFINITY && above[1] == bound.count);
    if (kHold == Hold::kGroups ? !__any_sync(kAllLanes, lower) : !lower) break;
    if (lower) threshold = (above[0] - 1.f) / above[1], before = above[1];
  }
  const float from = top + threshold;
  forget_row(x);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float f[N];
    unpack(x[k], f);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = f[i] - from < 0.f ? 0.f : f[i] - from;
    x[k] = pack<T>(f);
  }
  store_row<T>(a.out, p, x);
}

template <class T, int kVectors, Hold kHold, bool kSparse>
__global__ void __launch_bounds__(held_threads(kHold), held_blocks(kHold))
    softmax_backward_held(const Softmax a, int lanes) {
  constexpr int N = kPerVector<T>;
  __shared__ typename RowReduction<kHold>::Memory memory;
  const HeldPosition<T, kVectors, kHold> p(a.rows, a.cols, lanes);
  RowReduction<kHold> row(memory, lanes);
  grid_dependency_wait();
  Pack<T, N> y[kVectors], dy[kVectors];
  fetch_row<T>(y, a.x, a.x_stride, p, 0);
  fetch_row<T>(dy, a.dy, a.dy_stride, p, 0);
  float sums[kSparse ? 2 : 1] = {};  // sparse: of dy over y > 0, and their number; else of dy y
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float q[N], g[N];
    unpack(y[k], q);
    unpack(dy[k], g);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kSparse) {
        if (q[i] > 0.f) sums[0] += g[i], sums[1] += 1.f;
      } else {
        sums[0] += q[i] * g[i];
      }
    }
  }
  row.sum(sums);
  float level = sums[0];
  if constexpr (kSparse) level /= sums[1];
  forget_row(y);
  forget_row(dy);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float q[N], g[N];
    unpack(y[k], q);
    unpack(dy[k], g);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kSparse)
        g[i] = q[i] > 0.f ? g[i] - level : 0.f;
      else
        g[i] = q[i] * (g[i] - level);
    }
    dy[k] = pack<T>(g);
  }
  store_row<T>(a.out, p, dy);
}

}  // namespace probability::gpu
