// Sums of columns in a fixed order: what blocks of rows left of a gradient that all rows share.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"

namespace kernels::gpu {

struct ColumnSums {      // out[c] = sum over chunks of partial[chunk, c]
  const float* partial;  // [chunks, cols]
  int64_t chunks, cols;
  void* out;  // [cols] dtype
  DType dtype;
};

constexpr int kSumThreads = 256;
// Of a block: a sector of memory a chunk where that gives every multiprocessor a block or two, else a whole line.
constexpr int kFewColumns = 8, kManyColumns = 32;

// Of the block's columns from `begin` on, N of them a thread: strip y takes chunks y, y + kStrips, ... A thread's loads
// are on their way at the same time: nothing else hides their latency.
template <int kColumns, int N>
__device__ __forceinline__ void sum_block_columns(const ColumnSums& a, int64_t begin) {
  constexpr int kLanes = kColumns / N, kStrips = kSumThreads / kLanes, kWarps = kSumThreads / 32, kAtOnce = 8;
  __shared__ float of_warps[kWarps][kColumns];
  const int thread = int(threadIdx.x), warp = thread / 32, in_warp = thread % 32;
  const int64_t col = begin + thread % kLanes * N;
  float total[N] = {};
  for (int64_t first = thread / kLanes; col < a.cols && first < a.chunks; first += kAtOnce * kStrips) {
    Pack<float, N> some[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int64_t chunk = first + r * kStrips;
      if (chunk < a.chunks) some[r] = load<N>(a.partial + chunk * a.cols + col);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (first + r * kStrips >= a.chunks) break;
      float v[N];
      unpack(some[r], v);
#pragma unroll
      for (int i = 0; i < N; ++i) total[i] += v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int o = kLanes; o < 32; o *= 2) total[i] += __shfl_xor_sync(kAllLanes, total[i], o);
    if (in_warp < kLanes) of_warps[warp][in_warp * N + i] = total[i];
  }
  __syncthreads();
  if (thread >= kColumns || begin + thread >= a.cols) return;
  float all = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all += of_warps[w][thread];
  store_any(a.out, a.dtype, begin + thread, all);
}

template <int kColumns, int N>
__global__ void __launch_bounds__(kSumThreads) column_sums(const ColumnSums a) {
  grid_dependency_wait();
  sum_block_columns<kColumns, N>(a, int64_t{blockIdx.x} * kColumns);
}

// fn<columns of a block, of a thread>()
template <class Fn>
void with_sum_columns(const ColumnSums& a, const Fn& fn) {
  const bool vectors = a.cols % 4 == 0 && reinterpret_cast<uintptr_t>(a.partial) % kVectorBytes == 0;
  if (a.cols <= 2048)
    vectors ? fn.template operator()<kFewColumns, 4>() : fn.template operator()<kFewColumns, 1>();
  else
    vectors ? fn.template operator()<kManyColumns, 4>() : fn.template operator()<kManyColumns, 1>();
}

// Set up while the launch before it, which writes the partial sums, ends.
inline void sum_columns(const ColumnSums& a, Stream stream) {
  if (a.cols == 0) return;
  with_sum_columns(a, [&]<int kColumns, int N>() {
    launch_after(&column_sums<kColumns, N>, divide_up(a.cols, kColumns), kSumThreads, stream, a);
  });
}

}  // namespace kernels::gpu
