// Where a sample lies, on a GPU: the pyramid's table, elements of a type known at run time, and the four corners.
#pragma once

#include <cassert>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/deformable/cuda/deformable.h"

namespace deformable::cuda {

using namespace kernels;
using namespace kernels::gpu;

template <class T>
constexpr bool kIsDouble = std::is_same_v<T, double>;
template <class T>
using SumOf = std::conditional_t<kIsDouble<T>, double, float>;

__device__ __forceinline__ double to_sum(double v) { return v; }
template <class T>
__device__ __forceinline__ float to_sum(T v) {
  return to_float(v);
}
template <class T, class S>
__device__ __forceinline__ T from_sum(S v) {
  if constexpr (kIsDouble<T>)
    return v;
  else
    return from_float<T>(v);
}

// ---- the pyramid

struct DeviceLevel {
  int32_t height, width, start, first;  // first: of its samples
};
struct Pyramid {
  DeviceLevel level[kMaxLevels];
};

__device__ __forceinline__ int64_t read_size(const void* data, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}

// Into shared memory, by the first threads of the block; the sizes may be known to the GPU alone, so they are checked
// here: each level behind the one before it, all of them in value's rows.
__device__ __forceinline__ void read_pyramid(Pyramid& pyramid, const Problem& p) {
  const int l = int(threadIdx.x);
  if (l < p.levels.count) {
    const auto at = [&](int k) {
      if (p.levels.shapes == nullptr) return p.levels.known[k];
      return Level{read_size(p.levels.shapes, p.levels.wide_shapes, 2 * k),
                   read_size(p.levels.shapes, p.levels.wide_shapes, 2 * k + 1),
                   read_size(p.levels.starts, p.levels.wide_starts, k)};
    };
    const Level level = at(l);
    const auto inside = [&](const Level& of) {  // each by itself first: their product could be beyond 64 bits
      return of.height > 0 && of.height <= p.rows && of.width > 0 && of.width <= p.rows && of.start >= 0 &&
             of.start <= p.rows && of.start + of.height * of.width <= p.rows;
    };
    bool right = inside(level);
    if (l > 0) {
      const Level before = at(l - 1);
      right = right && inside(before) && level.start >= before.start + before.height * before.width;
    }
    assert(right && "level outside of value's rows");
    pyramid.level[l] = {int32_t(level.height), int32_t(level.width), int32_t(level.start), p.levels.first[l]};
  }
  __syncthreads();
}

__device__ __forceinline__ int level_of(const Pyramid& pyramid, int levels, int sample) {
  int l = 0;
  while (l + 1 < levels && pyramid.level[l + 1].first <= sample) ++l;
  return l;
}

// ---- a sample

template <class S>
__device__ __forceinline__ S read_number(const void* data, Number type, int64_t i) {
  if constexpr (kIsDouble<S>) {
    return static_cast<const double*>(data)[i];
  } else {
    if (type == Number::kFloat32) return static_cast<const float*>(data)[i];
    if (type == Number::kBFloat16) return to_float(static_cast<const BFloat16*>(data)[i]);
    return to_float(static_cast<const Half*>(data)[i]);
  }
}
template <class S>
__device__ __forceinline__ void write_number(void* data, Number type, int64_t i, S v) {
  if constexpr (kIsDouble<S>) {
    static_cast<double*>(data)[i] = v;
  } else {
    if (type == Number::kFloat32)
      static_cast<float*>(data)[i] = v;
    else if (type == Number::kBFloat16)
      static_cast<BFloat16*>(data)[i] = from_float<BFloat16>(v);
    else
      static_cast<Half*>(data)[i] = from_float<Half>(v);
  }
}

template <class S>
struct Raw {  // as it is given
  S x, y, a;
};
template <class S>
__device__ __forceinline__ Raw<S> read_sample(const Problem& p, int64_t i) {
  Raw<S> raw;
  if (!kIsDouble<S> && p.location_type == Number::kFloat32 && (reinterpret_cast<uintptr_t>(p.locations) & 7) == 0) {
    const float2 xy = static_cast<const float2*>(p.locations)[i];
    raw.x = xy.x, raw.y = xy.y;
  } else {
    raw.x = read_number<S>(p.locations, p.location_type, 2 * i);
    raw.y = read_number<S>(p.locations, p.location_type, 2 * i + 1);
  }
  raw.a = read_number<S>(p.weights, p.weight_type, i);
  return raw;
}

template <class S>
struct Position {
  int x0, y0;  // floor
  S fx, fy;
};
template <class S>  // false: it gives nothing; NaN does not either, and no number beyond int is converted
__device__ __forceinline__ bool find(const DeviceLevel& level, S x, S y, Position<S>& at) {
  const S px = x * S(level.width) - S(0.5), py = y * S(level.height) - S(0.5);
  if (!(px > S(-1) && px < S(level.width) && py > S(-1) && py < S(level.height))) return false;
  const S x0 = floor(px), y0 = floor(py);
  at = {int(x0), int(y0), px - x0, py - y0};
  return true;
}

// ---- N elements of T: 16 bytes at once, or one

template <class T, int N>
struct Elements {
  Pack<T, N> raw;
  __device__ __forceinline__ void get(SumOf<T> (&out)[N]) const {
    if constexpr (N == 1)
      out[0] = to_sum(raw.value);
    else
      unpack(raw, out);
  }
};
// Zeros where it is not `wanted`: nothing is read.
template <class T, int N>
__device__ __forceinline__ Elements<T, N> load_if(bool wanted, const T* p) {
  Elements<T, N> v{};
  if (wanted) v.raw = load<N>(p);
  return v;
}
template <class T, int N>
__device__ __forceinline__ void store_sums(T* p, const SumOf<T> (&v)[N]) {
  if constexpr (N == 1)
    *p = from_sum<T>(v[0]);
  else
    store(p, pack<T>(v));
}

// v[0, 2 kHalf), summed over the threads that differ in bits kMask to kLast of their place in the warp. Every step
// gives half of them away: the one with the bit keeps the upper half.
template <int kHalf, int kMask, int kLast, class S, int kAll>
__device__ __forceinline__ void sum_over(S (&v)[kAll]) {
  if constexpr (kMask >= kLast) {
    const bool upper = threadIdx.x & kMask;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const S kept = upper ? v[i + kHalf] : v[i], given = upper ? v[i] : v[i + kHalf];
      v[i] = kept + __shfl_xor_sync(kAllLanes, given, kMask);
    }
    sum_over<kHalf / 2, kMask / 2, kLast>(v);
  }
}

// fn<T, N, G>: value's type, channels a thread takes at once, threads that share a query and head (a power of two).
template <class Fn>
void with_layout(const Problem& p, bool aligned, const Fn& fn) {
  with_number(p.value_type, [&]<typename T>() {
    if constexpr (!kIsDouble<T>) {
      constexpr int N = kPerVector<T>;
      if (aligned && p.channels % N == 0) {
        const int64_t vectors = p.channels / N;
        if (vectors <= 2) return fn.template operator()<T, N, 2>();
        if (vectors <= 4) return fn.template operator()<T, N, 4>();
        if (vectors <= 8) return fn.template operator()<T, N, 8>();
        return fn.template operator()<T, N, 16>();
      }
    }
    return fn.template operator()<T, 1, 32>();
  });
}
inline int64_t size_of_number(Number type) { return type == Number::kFloat32 ? 4 : type == Number::kFloat64 ? 8 : 2; }
// Does every row of channels begin at a whole vector?
inline bool value_aligned(const Problem& p) {
  const int64_t size = size_of_number(p.value_type);
  return (reinterpret_cast<uintptr_t>(p.value) | uintptr_t(p.batch_stride * size) | uintptr_t(p.row_stride * size) |
          uintptr_t(p.head_stride * size)) %
             kVectorBytes ==
         0;
}
inline int64_t padded(int64_t bytes) { return divide_up(bytes, 256) * 256; }  // a part of scratch memory
inline bool pointer_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0; }

// Blocks of kThreads: of an image, of kThreads / G queries that follow each other, of a head. Heads go fastest: blocks
// that run together use the same part of value.
constexpr int kThreads = 256;
struct Turn {
  int64_t n, q, m, row;  // row: of batch x queries x heads
};
template <int G>
__device__ __forceinline__ bool my_turn(const Problem& p, Turn& t) {
  constexpr int kQueries = kThreads / G;
  const int64_t blocks = (p.queries + kQueries - 1) / kQueries, b = blockIdx.x;
  t.m = b % p.heads;
  t.n = b / p.heads / blocks;
  t.q = b / p.heads % blocks * kQueries + threadIdx.x / G;
  const bool there = t.q < p.queries;
  if (!there) t.q = p.queries - 1;
  t.row = (t.n * p.queries + t.q) * p.heads + t.m;
  return there;
}
template <int G>
int64_t blocks_of(const Problem& p) {
  return p.batch * p.heads * divide_up(p.queries, kThreads / G);
}

}  // namespace deformable::cuda
