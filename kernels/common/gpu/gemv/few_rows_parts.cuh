// What the kernels of few_rows.cuh and few_rows_held.cuh share: where weights and outputs are, and the sums of warps.
#pragma once

#include "kernels/common/gpu/activations.cuh"
#include "kernels/common/gpu/gemv/few_rows.h"
#include "kernels/common/gpu/launch.cuh"

namespace kernels::gpu {

constexpr int kFewThreads = 32 * kFewWarps;
constexpr int kFewDepth = 4;  // units on their way: 64 KB a multiprocessor
constexpr int kFewGroup = 4;  // tiles whose sums meet at once; even, so that gate and up stay together

// Where a tile's rows are.
struct FewTile {
  const char* row;  // this thread's: row lane / 4 of the tile
  bool inside;
};

template <class T>
struct FewWeights {
  const FewRows& a;
  int row_in_tile;
  __device__ __forceinline__ FewTile tile(int index) const {
    int which = 0, first = index * kFewTile;
    if (a.act != FewRowsAct::kNone) {
      which = index & 1, first = (index >> 1) * kFewTile;
    } else {
      while (which + 1 < a.weights && first >= few_tiles(a.w[which].rows) * kFewTile)
        first -= few_tiles(a.w[which].rows) * kFewTile, ++which;
    }
    const FewRowsWeight& w = a.w[which];
    const int row = first + row_in_tile;
    return {static_cast<const char*>(w.data) + row * w.stride * int64_t{sizeof(T)}, row < w.rows};
  }
  __device__ static __forceinline__ int few_tiles(int rows) { return (rows + kFewTile - 1) / kFewTile; }
};

__device__ __forceinline__ uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// One output from the warps' sums [warp][row][8 of the tile].
template <class T, int kRows>
__device__ __forceinline__ float few_sum(const float* sums, int row, int column) {
  float total = 0.f;
#pragma unroll
  for (int w = 0; w < kFewWarps; ++w) total += sums[(w * kRows + row) * kFewTile + column];
  return total;
}

template <class T>
__device__ __forceinline__ float biased(const FewRowsWeight& w, float v, int row) {
  return w.bias == nullptr ? v : v + to_float(static_cast<const T*>(w.bias)[row]);
}

// Which output of a group of tiles is this thread's: 8 columns, kRows rows, tiles (pairs of tiles).
template <int kRows>
struct FewOutput {
  int column = threadIdx.x % kFewTile, row = threadIdx.x / kFewTile % kRows, tile = threadIdx.x / (kFewTile * kRows);
};

// Where the thread's output of a plain group that begins at tile `first` stands in out; -1: nowhere.
template <class T, int kRows>
__device__ __forceinline__ int output_place(const FewRows& a, int first, int end, int& which, int& in_weight) {
  const FewOutput<kRows> mine;
  which = 0, in_weight = (first + mine.tile) * kFewTile + mine.column;
  if (mine.row >= a.rows || mine.tile >= kFewGroup || first + mine.tile >= end) return -1;
  int before = 0;
  while (which + 1 < a.weights && in_weight >= FewWeights<T>::few_tiles(a.w[which].rows) * kFewTile)
    in_weight -= FewWeights<T>::few_tiles(a.w[which].rows) * kFewTile, before += a.w[which++].rows;
  return in_weight < a.w[which].rows ? before + in_weight : -1;
}

template <class T, int kRows>
__device__ __forceinline__ T residual_of(const FewRows& a, int first, int end) {
  int which, in_weight;
  if (a.residual == nullptr) return T{};
  const int at = output_place<T, kRows>(a, first, end, which, in_weight);
  return at < 0 ? T{} : static_cast<const T*>(a.residual)[FewOutput<kRows>().row * a.residual_stride + at];
}

// The outputs of tiles [first, first + count), whose sums lie in shared memory: at most one a thread.
template <class T, int kRows>
__device__ __forceinline__ void few_outputs(const FewRows& a, const float* sums, int first, int count, T residual) {
  constexpr int kTileSums = kFewWarps * kRows * kFewTile;
  static_assert(kFewGroup * kRows * kFewTile <= kFewThreads);
  const FewOutput<kRows> mine;
  T* out = static_cast<T*>(a.out) + mine.row * a.out_stride;
  if (a.act != FewRowsAct::kNone) {
    const int at = (first / 2 + mine.tile) * kFewTile + mine.column;
    if (mine.row >= a.rows || mine.tile >= count / 2 || at >= a.w[0].rows) return;
    const float* gates = sums + 2 * mine.tile * kTileSums;
    const float g = rounded<T>(biased<T>(a.w[0], few_sum<T, kRows>(gates, mine.row, mine.column), at));
    const float u = rounded<T>(biased<T>(a.w[1], few_sum<T, kRows>(gates + kTileSums, mine.row, mine.column), at));
    out[at] = from_float<T>((a.act == FewRowsAct::kSilu ? Silu::value<true>(g) : GeluTanh::value<true>(g)) * u);
    return;
  }
  int which, in_weight;
  const int at = output_place<T, kRows>(a, first, first + count, which, in_weight);
  if (at < 0) return;
  float v = biased<T>(a.w[which], few_sum<T, kRows>(sums + mine.tile * kTileSums, mine.row, mine.column), in_weight);
  if (a.residual != nullptr) v = to_float(residual) + rounded<T>(v);
  out[at] = from_float<T>(v);
}

}  // namespace kernels::gpu
