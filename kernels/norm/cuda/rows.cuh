// A row of a tensor in the registers of the threads that share it, and the scale that belongs to their columns.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/norm/norm.h"

namespace norms::gpu {

using namespace kernels;
using namespace kernels::gpu;

// Where a thread stands: kVectors vectors of N columns, `lanes` vectors apart. kGroups: several rows share a block,
// each a part of a warp or some warps, and loops go over first rows, so that all threads of a block stay together; else
// a row has the block. kFull: no thread lacks a column, which makes asking for it free.
template <class T, int kVectors, bool kGroups = kVectors == 1, bool kFull = false>
struct Position {
  static constexpr int N = kPerVector<T>;
  int64_t rows, first, step;
  int cols, lane, group, lanes;

  __device__ Position(int64_t rows, int64_t cols, int lanes) : rows(rows), cols(int(cols)) {
    this->lanes = kGroups ? lanes : int(blockDim.x);
    lane = kGroups ? int(threadIdx.x) % lanes : int(threadIdx.x);
    group = kGroups ? int(threadIdx.x) / lanes : 0;
    first = int64_t{blockIdx.x} * groups();
    step = int64_t{gridDim.x} * groups();
  }
  __device__ __forceinline__ int groups() const { return kGroups ? int(blockDim.x) / lanes : 1; }
  __device__ __forceinline__ int col(int k) const { return (k * lanes + lane) * N; }
  __device__ __forceinline__ bool has(int k) const { return kFull || col(k) < cols; }
  __device__ __forceinline__ bool has(int64_t row, int k) const { return (!kGroups || row < rows) && has(k); }
};

template <class T, int kVectors>
struct Held {
  static constexpr int N = kPerVector<T>;
  Pack<T, N> v[kVectors];

  // Zeros where there is no row or column.
  template <class P>
  __device__ __forceinline__ void fetch(const void* data, int64_t stride, int64_t row, const P& p) {
    const T* at = static_cast<const T*>(data) + row * stride;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) v[k] = p.has(row, k) ? load_evict_last<N>(at + p.col(k)) : Pack<T, N>{};
  }
  __device__ __forceinline__ void forget_numbers() {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) force_reunpack(v[k]);
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

  template <class P>
  __device__ __forceinline__ void fetch(const Scale& s, const P& p, int k) {
    v[k] = p.has(k) ? load<N>(static_cast<const T*>(s.weight) + p.col(k)) : Pack<T, N>{};
  }
  template <class P>
  __device__ __forceinline__ void fetch(const Scale& s, const P& p) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) fetch(s, p, k);
  }
  __device__ __forceinline__ void forget_numbers() {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) force_reunpack(v[k]);
  }
  // Vector k as elements. With x's type and no offset there is nothing to round: it is of that type already.
  __device__ __forceinline__ void get(const Scale& s, int k, float (&f)[N]) const {
    unpack(v[k], f);
    if (s.offset == 0.f) return;
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = rounded(f[i] + s.offset, s.after);
  }
};

__device__ __forceinline__ float inverse_sqrt(float v) { return rsqrtf(v); }  // to two units in the last place

// n rounded to T where the casting wants it.
template <class T, int N>
__device__ __forceinline__ void round_all(float (&f)[N]) {
  if constexpr (sizeof(T) < 4) unpack(pack<T>(f), f);
}

}  // namespace norms::gpu
