// Rows of x into shared memory for a product, by all warps that multiply: as they are, normed, or put together from the
// parts that attention left.
#pragma once

#include "kernels/decode/heads.cuh"
#include "kernels/decode/whole/weights.cuh"

namespace decode::cuda {

__device__ __forceinline__ uint4 load_fresh(const void* p) {  // from L2: another block may have just written it
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// Which columns of which row are this thread's: from `first` on, kEach of every `step`. 2^shift warps share a row.
template <int kEach>
struct RowShare {
  int row, first, step;
  __device__ __forceinline__ explicit RowShare(int shift) {
    const int warp = threadIdx.x / 32, parts = 1 << shift;
    row = warp >> shift, first = ((warp & (parts - 1)) * 32 + int(threadIdx.x) % 32) * kEach, step = parts * 32 * kEach;
  }
};

// 8 numbers of a product's x, which the product before it told or wrote.
template <bool kTold>
__device__ __forceinline__ uint4 eight_of(const Product& p, int product, int64_t at, unsigned turn) {
  if (kTold && product > 1) return hear_eight(product - 1, at, turn);
  return load_fresh(static_cast<const char*>(p.x) + 2 * at);
}

template <class T, bool kTold>
__device__ __forceinline__ void put_rows(const Whole& w, const Product& p, int product, T* to, unsigned turn) {
  const RowShare<8> s(w.share_shift);
  if (s.row < w.a.rows) {
    T* row = to + s.row * (p.in + kFewPad);
#pragma unroll(kTold ? 1 : 6)
    for (int c = s.first; c < p.in; c += s.step)
      *reinterpret_cast<uint4*>(row + c) = eight_of<kTold>(p, product, int64_t{s.row} * p.in + c, turn);
  }
  sync_workers();
}

// Llama's norm. weight: in shared memory, once `norms` says so.
template <class T, bool kTold>
__device__ __forceinline__ void put_normed(const Whole& w, const Product& p, int product, T* to, const T* weight,
                                           Barrier& norms, float* squares, unsigned turn) {
  const RowShare<8> s(w.share_shift);
  T* row = to + s.row * (p.in + kFewPad);
  if (s.row < w.a.rows) {
    float sum = 0.f;
#pragma unroll(kTold ? 1 : 4)
    for (int c = s.first; c < p.in; c += s.step) {
      const uint4 v = eight_of<kTold>(p, product, int64_t{s.row} * p.in + c, turn);
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
  norms.wait(0);
  if (s.row < w.a.rows) {
    const int parts = 1 << w.share_shift;
    float sum = 0.f;
    for (int i = 0; i < parts; ++i) sum += squares[s.row * parts + i];
    const float rstd = rsqrtf(sum / float(p.in) + p.eps);
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

// What attention left of each run of keys.
template <class T, int kDim>
__device__ __forceinline__ void put_attended(const Whole& w, T* to, int splits) {
  const RowShare<4> s(w.share_shift);
  const int heads = int(w.a.heads), stride = heads * kDim + kFewPad;
  if (s.row < w.a.rows) {
    for (int c = s.first; c < heads * kDim; c += s.step) {
      const int head = s.row * heads + c / kDim;
      const auto* stats = reinterpret_cast<const float2*>(w.stats) + head * splits;
      const float* parts = w.parts + int64_t{head} * splits * kDim + c % kDim;
      float2 stat[kMostParts];
      uint4 part[kMostParts];
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) {
        stat[i] = i < splits ? __ldcg(stats + i) : make_float2(-INFINITY, 0.f);
        part[i] = i < splits ? load_fresh(parts + i * kDim) : uint4{};
      }
      float most = -INFINITY, sum = 0.f, value[4] = {};
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) most = fmaxf(most, stat[i].x);
#pragma unroll
      for (int i = 0; i < kMostParts; ++i) {
        const float weight = exp2f(stat[i].x - most);
        sum += stat[i].y * weight;
        value[0] += __uint_as_float(part[i].x) * weight, value[1] += __uint_as_float(part[i].y) * weight;
        value[2] += __uint_as_float(part[i].z) * weight, value[3] += __uint_as_float(part[i].w) * weight;
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) value[n] /= sum;
      *reinterpret_cast<uint2*>(to + s.row * stride + c) =
          make_uint2(pack_pair<T>(value[0], value[1]), pack_pair<T>(value[2], value[3]));
    }
  }
  sync_workers();
}

}  // namespace decode::cuda
