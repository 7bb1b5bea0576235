// Rows of x into shared memory for a product, by all warps that multiply: as they are, or normed.
#pragma once

#include "kernels/decode/tail/weights.cuh"

namespace decode::cuda {

// Which columns of which row are this thread's: from `first` on, 8 of every `step`. 2^shift warps share a row.
struct RowShare {
  int row, first, step;
  __device__ __forceinline__ explicit RowShare(int shift) {
    const int warp = threadIdx.x / 32, parts = 1 << shift;
    row = warp >> shift, first = ((warp & (parts - 1)) * 32 + int(threadIdx.x) % 32) * 8, step = parts * 32 * 8;
  }
};

template <class T>
__device__ __forceinline__ void put_rows(const Tail& t, const Product& p, T* to) {
  const RowShare s(t.share_shift);
  if (s.row < t.rows) {
    const T* x = static_cast<const T*>(p.x) + int64_t{s.row} * p.in;
    T* row = to + s.row * (p.in + kFewPad);
#pragma unroll 6
    for (int c = s.first; c < p.in; c += s.step)
      *reinterpret_cast<uint4*>(row + c) = __ldcg(reinterpret_cast<const uint4*>(x + c));
  }
  sync_workers();
}

// Llama's norm. weight: in shared memory, once `norm` says so.
template <class T>
__device__ __forceinline__ void put_normed(const Tail& t, const Product& p, T* to, const T* weight, Barrier& norm,
                                           float* squares) {
  const RowShare s(t.share_shift);
  T* row = to + s.row * (p.in + kFewPad);
  if (s.row < t.rows) {
    const T* x = static_cast<const T*>(p.x) + int64_t{s.row} * p.in;
    float sum = 0.f;
#pragma unroll 4
    for (int c = s.first; c < p.in; c += s.step) {
      const uint4 v = __ldcg(reinterpret_cast<const uint4*>(x + c));
      *reinterpret_cast<uint4*>(row + c) = v;
      float f[8];
      unpack<T, 8>({v.x, v.y, v.z, v.w}, f);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += f[i] * f[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
  }
  sync_workers();
  norm.wait(0);
  if (s.row < t.rows) {
    const int parts = 1 << t.share_shift;
    float sum = 0.f;
    for (int i = 0; i < parts; ++i) sum += squares[s.row * parts + i];
    const float rstd = rsqrtf(sum / float(p.in) + t.eps);
#pragma unroll 1
    for (int c = s.first; c < p.in; c += s.step) {
      const uint4 v = *reinterpret_cast<const uint4*>(row + c), n = *reinterpret_cast<const uint4*>(weight + c);
      float f[8], by[8];
      unpack<T, 8>({v.x, v.y, v.z, v.w}, f);
      unpack<T, 8>({n.x, n.y, n.z, n.w}, by);
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i] = rounded<T>(f[i] * rstd) * by[i];
      const Pack<T, 8> normed = pack<T>(f);
      *reinterpret_cast<uint4*>(row + c) = make_uint4(normed.w[0], normed.w[1], normed.w[2], normed.w[3]);
    }
  }
  sync_workers();
}

}  // namespace decode::cuda
