// A row of a tensor in the registers of the threads that share it, and the scale that belongs to their columns.
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/norm/norm.h"

namespace norms::gpu {

using namespace kernels;
using namespace kernels::gpu;

// Where a thread stands: kVectors vectors of N columns, `lanes` vectors apart. With one vector several rows share a
// block, each a part of a warp, and loops go over first rows, so that all threads of a warp stay together; with more, a
// row has the block.
template <class T, int kVectors>
struct Place {
  static constexpr int N = kPerVector<T>;
  static constexpr bool kGroups = kVectors == 1;
  int64_t rows, first, step;
  int cols, lane, group, lanes;

  __device__ Place(int64_t rows, int64_t cols, int lanes) : rows(rows), cols(int(cols)) {
    this->lanes = kGroups ? lanes : int(blockDim.x);
    lane = kGroups ? int(threadIdx.x) % lanes : int(threadIdx.x);
    group = kGroups ? int(threadIdx.x) / lanes : 0;
    const int rows_per_block = kGroups ? int(blockDim.x) / lanes : 1;
    first = int64_t{blockIdx.x} * rows_per_block;
    step = int64_t{gridDim.x} * rows_per_block;
  }
  __device__ __forceinline__ int col(int k) const { return (k * lanes + lane) * N; }
  __device__ __forceinline__ bool has(int k) const { return col(k) < cols; }
  __device__ __forceinline__ bool has(int64_t row, int k) const { return (!kGroups || row < rows) && has(k); }
};

template <class T, int kVectors>
struct Held {
  static constexpr int N = kPerVector<T>;
  Pack<T, N> v[kVectors];

  // Zeros where there is no row or column.
  __device__ __forceinline__ void fetch(const void* data, int64_t stride, int64_t row, const Place<T, kVectors>& p) {
    const T* at = static_cast<const T*>(data) + row * stride;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) v[k] = p.has(row, k) ? load<N>(at + p.col(k)) : Pack<T, N>{};
  }
  // The next row of a block that goes through many: there may be none.
  __device__ __forceinline__ void fetch_next(const void* data, int64_t stride, int64_t row,
                                             const Place<T, kVectors>& p) {
    if (Place<T, kVectors>::kGroups || row < p.rows) fetch(data, stride, row, p);
  }
  __device__ __forceinline__ void forget_numbers() {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) forget(v[k]);
  }
};

template <int N>
__device__ __forceinline__ void load_scale(const Scale& s, int64_t col, bool aligned, float (&f)[N]) {
  load_any<N>(s.weight, s.weight_dtype, col, aligned, f);
#pragma unroll
  for (int i = 0; i < N; ++i) f[i] = rounded(rounded(f[i], s.before) + s.offset, s.after);
}
__device__ __forceinline__ bool scale_aligned(const Scale& s) {
  return reinterpret_cast<uintptr_t>(s.weight) % 16 == 0;
}

// The thread's columns of a weight of x's own type at whole vectors, as it lies in memory.
template <class T, int kVectors>
struct HeldScale {
  static constexpr int N = kPerVector<T>;
  Pack<T, N> v[kVectors];

  __device__ __forceinline__ void fetch(const Scale& s, const Place<T, kVectors>& p) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      v[k] = p.has(k) ? load_shared<N>(static_cast<const T*>(s.weight) + p.col(k)) : Pack<T, N>{};
  }
  __device__ __forceinline__ void forget_numbers() {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) forget(v[k]);
  }
  // Vector k as numbers. With x's type and no offset there is nothing to round: it is of that type already.
  __device__ __forceinline__ void get(const Scale& s, int k, float (&f)[N]) const {
    unpack(v[k], f);
    if (s.offset == 0.f) return;
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = rounded(f[i] + s.offset, s.after);
  }
};

// The block's sums of its columns become its row of `partial`: groups in order where a block holds several.
template <class T, int kVectors>
__device__ __forceinline__ void write_partial(float* partial, const Place<T, kVectors>& p,
                                              float (&sum)[kVectors][kPerVector<T>]) {
  constexpr int N = kPerVector<T>, kSmallBlock = 128;
  float* out = partial + int64_t{blockIdx.x} * p.cols;
  if constexpr (Place<T, kVectors>::kGroups) {
    __shared__ float memory[N][kSmallBlock];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) memory[i][threadIdx.x] = sum[0][i];
    __syncthreads();
    if (p.group > 0) return;
    for (int g = 1; g < int(blockDim.x) / p.lanes; ++g) {
#pragma unroll
      for (int i = 0; i < N; ++i) sum[0][i] += memory[i][g * p.lanes + p.lane];
    }
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!p.has(k)) continue;
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<float4*>(out + p.col(k) + i) =
          make_float4(sum[k][i], sum[k][i + 1], sum[k][i + 2], sum[k][i + 3]);
  }
}

__device__ __forceinline__ float inverse_sqrt(float v) { return 1.f / sqrtf(v); }

// n rounded to T where the casting wants it.
template <class T, int N>
__device__ __forceinline__ void round_all(float (&f)[N]) {
  if constexpr (sizeof(T) < 4) unpack(pack<T>(f), f);
}

}  // namespace norms::gpu
