// x of few_rows.h in shared memory, normed or as it is.
#pragma once

#include "kernels/common/gpu/few_rows_parts.cuh"

namespace kernels::gpu {

// How many warps share a row where all of x is read at once.
__device__ __forceinline__ int warps_a_row(int rows) {
  return rows > 8 ? 1 : rows > 4 ? 2 : rows > 2 ? 4 : rows > 1 ? 8 : 16;
}

// Llama's norm of all rows into shared memory, by kFewThreads threads that meet(). weight: in shared memory, by this
// launch's own copies; or in memory, where a thread reads its first numbers before they are wanted.
template <class T, bool kFromMemory, class Meet>
__device__ __forceinline__ void norm_rows(const FewRows& a, T* to, int to_stride, const T* weight, float* squares,
                                          const Meet& meet) {
  constexpr int N = kPerVector<T>;
  const int warp = threadIdx.x / 32, parts = warps_a_row(a.rows), r = warp / parts, part = warp % parts;
  const int first = (part * 32 + int(threadIdx.x) % 32) * N, step = parts * 32 * N;
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
  Pack<T, N> early{};
  if (r < a.rows) {
    if (kFromMemory && first < a.in) early = load<N>(weight + first);
    float sum = 0.f;
#pragma unroll 4
    for (int c = first; c < a.in; c += step) {
      float f[N];
      load_floats<N>(x + c, f);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += f[i] * f[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[warp] = sum;
  }
  if constexpr (!kFromMemory) wait_copies<0>();
  meet();
  if (r < a.rows) {
    float sum = 0.f;
    for (int i = 0; i < parts; ++i) sum += squares[r * parts + i];
    const float rstd = rsqrtf(sum / float(a.in) + a.eps);
#pragma unroll 4
    for (int c = first; c < a.in; c += step) {
      float f[N], w[N];
      load_floats<N>(x + c, f);
      if (kFromMemory)
        unpack<T, N>(c == first ? early : load<N>(weight + c), w);
      else
        unpack<T, N>(*reinterpret_cast<const Pack<T, N>*>(weight + c), w);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = rounded<T>(f[i] * rstd) * w[i];
      const Pack<T, N> normed = pack<T>(f);  // store() is for global memory
      *reinterpret_cast<uint4*>(to + r * to_stride + c) =
          make_uint4(normed.w[0], normed.w[1], normed.w[2], normed.w[3]);
    }
  }
  meet();
}

// This warp's columns of x as they are.
template <class T>
__device__ __forceinline__ void copy_columns(const FewRows& a, T* to, int to_stride, int units) {
  constexpr int kPieces = kFewUnit / 8;
  const int warp = threadIdx.x / 32;
  for (int i = threadIdx.x % 32; i < a.rows * units * kPieces; i += 32) {
    const int piece = i % kPieces, unit = i / kPieces % units, r = i / (kPieces * units);
    const int c = (unit * kFewWarps + warp) * kFewUnit + piece * 8;
    if (c < a.in) start_copy(to + r * to_stride + c, static_cast<const T*>(a.x) + r * a.x_stride + c, false);
  }
  commit_copies();
  wait_copies<0>();
  __syncwarp();
}

inline int64_t few_rows_x_bytes(const FewRows& a) { return a.rows * (int64_t{a.in} + kFewPad) * 2; }

}  // namespace kernels::gpu
