// What the kernels of few_rows.cuh, few_rows_held.cuh and few_rows_ring.cuh share: where weights and outputs are, and
// the sums of warps.
#pragma once

#include "kernels/common/gpu/activations.cuh"
#include "kernels/common/gpu/few_rows.h"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/mma.cuh"

namespace kernels::gpu {

constexpr int kFewWarps = 16, kFewThreads = 32 * kFewWarps;
constexpr int kFewTile = 8;   // outputs of a tile: the n side of an mma; kTile where a kernel has another number
constexpr int kFewUnit = 64;  // columns that a warp reads of a tile at once: 2 vectors of 16 bytes a thread
constexpr int kFewDepth = 4;  // units on their way: 64 KB a multiprocessor
constexpr int kFewGroup = 4;  // tiles whose sums meet at once; even, so that gate and up stay together

template <int kTile = kFewTile>
__host__ __device__ __forceinline__ int few_tiles(int rows) {
  return (rows + kTile - 1) / kTile;
}

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
};

__device__ __forceinline__ uint4 load_streamed(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// One output from the warps' sums [warp][rows][kTile].
template <int kTile = kFewTile>
__device__ __forceinline__ float few_sum(const float* sums, int rows, int row, int column) {
  float total = 0.f;
#pragma unroll
  for (int w = 0; w < kFewWarps; ++w) total += sums[(w * rows + row) * kTile + column];
  return total;
}

template <class T>
__device__ __forceinline__ float biased(const FewRowsWeight& w, float v, int row) {
  return w.bias == nullptr ? v : v + to_float(static_cast<const T*>(w.bias)[row]);
}

// Which output of a group of tiles is this thread's: kTile columns, kRows rows, tiles (pairs of tiles).
template <int kRows, int kTile = kFewTile>
struct FewOutput {
  int column = threadIdx.x % kTile, row = threadIdx.x / kTile % kRows, tile = threadIdx.x / (kTile * kRows);
};

// Where the thread's output of a plain group that begins at tile `first` stands in out; -1: nowhere.
template <class T, int kRows, int kTile = kFewTile>
__device__ __forceinline__ int output_place(const FewRows& a, int first, int end, int& which, int& in_weight) {
  const FewOutput<kRows, kTile> mine;
  which = 0, in_weight = (first + mine.tile) * kTile + mine.column;
  if (mine.row >= a.rows || mine.tile >= kFewGroup || first + mine.tile >= end) return -1;
  int before = 0;
  while (which + 1 < a.weights && in_weight >= few_tiles<kTile>(a.w[which].rows) * kTile)
    in_weight -= few_tiles<kTile>(a.w[which].rows) * kTile, before += a.w[which++].rows;
  return in_weight < a.w[which].rows ? before + in_weight : -1;
}

template <class T, int kRows, int kTile = kFewTile>
__device__ __forceinline__ T residual_of(const FewRows& a, int first, int end) {
  int which, in_weight;
  if (a.residual == nullptr) return T{};
  const int at = output_place<T, kRows, kTile>(a, first, end, which, in_weight);
  return at < 0 ? T{} : static_cast<const T*>(a.residual)[FewOutput<kRows, kTile>().row * a.residual_stride + at];
}

// The outputs of tiles [first, first + count), whose sums, of so many rows, lie in shared memory: at most one a thread.
template <class T, int kRows, int kTile = kFewTile>
__device__ __forceinline__ void few_outputs(const FewRows& a, const float* sums, int rows, int first, int count,
                                            T residual) {
  static_assert(kFewGroup * kRows * kTile <= kFewThreads);
  const FewOutput<kRows, kTile> mine;
  const int tile_sums = kFewWarps * rows * kTile;
  T* out = static_cast<T*>(a.out) + mine.row * a.out_stride;
  if (a.act != FewRowsAct::kNone) {
    const int at = (first / 2 + mine.tile) * kTile + mine.column;
    if (mine.row >= a.rows || mine.tile >= count / 2 || at >= a.w[0].rows) return;
    const float* gates = sums + 2 * mine.tile * tile_sums;
    const float g = rounded<T>(biased<T>(a.w[0], few_sum<kTile>(gates, rows, mine.row, mine.column), at));
    const float u = rounded<T>(biased<T>(a.w[1], few_sum<kTile>(gates + tile_sums, rows, mine.row, mine.column), at));
    out[at] = from_float<T>((a.act == FewRowsAct::kSilu ? Silu::value<true>(g) : GeluTanh::value<true>(g)) * u);
    return;
  }
  int which, in_weight;
  const int at = output_place<T, kRows, kTile>(a, first, first + count, which, in_weight);
  if (at < 0) return;
  const float* of_tile = sums + mine.tile * tile_sums;
  float v = biased<T>(a.w[which], few_sum<kTile>(of_tile, rows, mine.row, mine.column), in_weight);
  if (a.residual != nullptr) v = to_float(residual) + rounded<T>(v);
  out[at] = from_float<T>(v);
}

template <int kTile = kFewTile>
int few_rows_tiles(const FewRows& a) {
  int tiles = 0;
  for (int i = 0; i < a.weights; ++i) tiles += few_tiles<kTile>(a.w[i].rows);
  return tiles;
}

}  // namespace kernels::gpu
