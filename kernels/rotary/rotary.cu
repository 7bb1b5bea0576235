// Rotary embedding on a GPU. A block takes one position: its tables are in the cache for all heads of q and k.
#include <algorithm>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/rotary/rotary_cuda.h"

namespace rotary::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kThreads = 256, kMostThreads = 512;

struct Layout {
  int units;  // items a head: a vector of a's and one of b's (half), or one vector of pairs (interleaved)
  int items;  // of all heads of a position
  bool tables_aligned;
};

// What one position does to a thread's elements: y[a] = x[a] c[0] + x[b] s[0], y[b] = x[b] c[1] + x[a] s[1].
template <int N>
struct Angles {
  float c[2][N], s[2][N];
};

template <bool kInterleaved, int N>
__device__ __forceinline__ Angles<N> angles(const RotaryArgs& a, int64_t b, int64_t time, int64_t unit, bool aligned) {
  Angles<N> t;
  const int64_t cos = b * a.cos_stride[0] + time * a.cos_stride[1], sin = b * a.sin_stride[0] + time * a.sin_stride[1];
  if constexpr (kInterleaved) {  // one entry serves both members of a pair
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      float c[1], s[1];
      load_any<1>(a.cos, a.table_dtype, cos + unit * (N / 2) + i, false, c);
      load_any<1>(a.sin, a.table_dtype, sin + unit * (N / 2) + i, false, s);
      t.c[0][i] = t.c[1][i] = c[0];
      t.s[0][i] = t.s[1][i] = s[0];
    }
  } else {
    const int64_t second = a.half_table ? 0 : a.rotary_dim / 2;
    load_any<N>(a.cos, a.table_dtype, cos + unit * N, aligned, t.c[0]);
    load_any<N>(a.sin, a.table_dtype, sin + unit * N, aligned, t.s[0]);
    load_any<N>(a.cos, a.table_dtype, cos + second + unit * N, aligned, t.c[1]);
    load_any<N>(a.sin, a.table_dtype, sin + second + unit * N, aligned, t.s[1]);
  }
  constexpr int kPairs = kInterleaved ? N / 2 : N;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float s1 = t.s[0][i], s2 = t.s[1][i];
    t.s[0][i] = a.backward ? s2 : -s1;
    t.s[1][i] = a.backward ? -s1 : s2;
  }
  return t;
}

// The same bits in every layout: the order of rounding is not left to the compiler.
__device__ __forceinline__ float turn(float x, float c, float other, float s) {
  return __fmaf_rn(other, s, __fmul_rn(x, c));
}

struct Head {
  const void* x;
  void* y;
  int64_t x_at, y_at;
};
__device__ __forceinline__ Head head_at(const RotaryArgs& a, int64_t b, int64_t time, int64_t head) {
  const bool is_q = head < a.q.heads;
  const RotaryTensor& r = is_q ? a.q : a.k;
  const int64_t h = is_q ? head : head - a.q.heads;
  return {r.x, r.y, b * r.x_stride[0] + h * r.x_stride[1] + time * r.x_stride[2],
          b * r.y_stride[0] + h * r.y_stride[1] + time * r.y_stride[2]};
}

template <class T, bool kInterleaved>
__global__ void __launch_bounds__(kMostThreads) rotate_vectors(const RotaryArgs a, const Layout l) {
  constexpr int N = kPerVector<T>;
  const int64_t far = kInterleaved ? 0 : a.rotary_dim / 2, all_heads = a.q.heads + a.k.heads;
  for (int64_t at = blockIdx.x; at < a.batch * a.time; at += gridDim.x) {
    const int64_t b = a.batch == 1 ? 0 : at / a.time, time = at - b * a.time;
    for (int item = int(threadIdx.x); item < l.items; item += int(blockDim.x)) {
      const int unit = item % l.units;
      const Head head = head_at(a, b, time, item / l.units);
      const T* x = static_cast<const T*>(head.x) + head.x_at + unit * N;
      T* y = static_cast<T*>(head.y) + head.y_at + unit * N;
      const Pack<T, N> va = load<N>(x), vb = kInterleaved ? Pack<T, N>{} : load<N>(x + far);
      const Angles<N> t = angles<kInterleaved, N>(a, b, time, unit, l.tables_aligned);
      float xa[N], xb[N];
      unpack(va, xa);
      if constexpr (kInterleaved) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          const float one = xa[2 * i], two = xa[2 * i + 1];
          xa[2 * i] = turn(one, t.c[0][i], two, t.s[0][i]);
          xa[2 * i + 1] = turn(two, t.c[1][i], one, t.s[1][i]);
        }
        store_floats<N>(y, xa);
      } else {
        unpack(vb, xb);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float one = xa[i], two = xb[i];
          xa[i] = turn(one, t.c[0][i], two, t.s[0][i]);
          xb[i] = turn(two, t.c[1][i], one, t.s[1][i]);
        }
        store_floats<N>(y, xa);
        store_floats<N>(y + far, xb);
      }
    }
    const int64_t pass = (a.dim - a.rotary_dim) / N;  // vectors a head that pass through
    for (int64_t i = threadIdx.x; i < all_heads * pass; i += blockDim.x) {
      const Head head = head_at(a, b, time, i / pass);
      if (head.x == head.y) continue;
      const int64_t col = a.rotary_dim + i % pass * N;
      store(static_cast<T*>(head.y) + head.y_at + col, load<N>(static_cast<const T*>(head.x) + head.x_at + col));
    }
  }
}

// Any strides, any sizes: a thread a pair, or an element that passes through.
template <class T>
__global__ void __launch_bounds__(kThreads) rotate_elements(const RotaryArgs a) {
  const int64_t half = a.rotary_dim / 2, items = half + a.dim - a.rotary_dim, all_heads = a.q.heads + a.k.heads;
  const int64_t total = a.batch * a.time * all_heads * items, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < total; at += step) {
    const int64_t item = at % items, head_index = at / items % all_heads, position = at / items / all_heads;
    const int64_t b = position / a.time, time = position % a.time;
    const Head head = head_at(a, b, time, head_index);
    const RotaryTensor& r = head_index < a.q.heads ? a.q : a.k;
    const T* x = static_cast<const T*>(head.x) + head.x_at;
    T* y = static_cast<T*>(head.y) + head.y_at;
    if (item >= half) {
      const int64_t col = item + half;
      if (head.x != head.y) y[col * r.y_stride[3]] = x[col * r.x_stride[3]];
      continue;
    }
    float c1[1], c2[1], s1[1], s2[1];
    const int64_t second = a.half_table || a.interleaved ? item : item + half;
    const int64_t cos = b * a.cos_stride[0] + time * a.cos_stride[1],
                  sin = b * a.sin_stride[0] + time * a.sin_stride[1];
    load_any<1>(a.cos, a.table_dtype, cos + item, false, c1);
    load_any<1>(a.cos, a.table_dtype, cos + second, false, c2);
    load_any<1>(a.sin, a.table_dtype, sin + item, false, s1);
    load_any<1>(a.sin, a.table_dtype, sin + second, false, s2);
    const float to_a = a.backward ? s2[0] : -s1[0], to_b = a.backward ? -s1[0] : s2[0];
    const int64_t ia = a.interleaved ? 2 * item : item, ib = a.interleaved ? ia + 1 : item + half;
    const float xa = to_float(x[ia * r.x_stride[3]]), xb = to_float(x[ib * r.x_stride[3]]);
    y[ia * r.y_stride[3]] = from_float<T>(turn(xa, c1[0], xb, to_a));
    y[ib * r.y_stride[3]] = from_float<T>(turn(xb, c2[0], xa, to_b));
  }
}

bool vectors_fit(const RotaryArgs& a) {
  const int64_t n = kVectorBytes / size_of(a.dtype), unit = a.interleaved ? n : 2 * n;
  const auto fits = [&](const void* data, const int64_t(&stride)[4]) {
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 && stride[0] % n == 0 && stride[1] % n == 0 &&
           stride[2] % n == 0 && stride[3] == 1;
  };
  return a.rotary_dim % unit == 0 && a.dim % n == 0 && fits(a.q.x, a.q.x_stride) && fits(a.q.y, a.q.y_stride) &&
         fits(a.k.x, a.k.x_stride) && fits(a.k.y, a.k.y_stride);
}

bool tables_aligned(const RotaryArgs& a) {
  const int64_t size = size_of(a.table_dtype);
  const auto fits = [&](const void* data, const int64_t(&stride)[2]) {
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 && stride[0] * size % kVectorBytes == 0 &&
           stride[1] * size % kVectorBytes == 0;
  };
  return a.rotary_dim / 2 * size % kVectorBytes == 0 && fits(a.cos, a.cos_stride) && fits(a.sin, a.sin_stride);
}

}  // namespace

void rotate(const RotaryArgs& a, Stream stream) {
  const int64_t positions = a.batch * a.time, heads = a.q.heads + a.k.heads;
  if (positions == 0 || heads == 0) return;
  with_dtype(a.dtype, [&]<typename T>() {
    if (vectors_fit(a)) {
      const int64_t units = a.rotary_dim / kPerVector<T> / (a.interleaved ? 1 : 2), items = heads * units;
      if (items > INT32_MAX) throw std::runtime_error("rotary: wanted fewer than 2^31 vectors a position");
      const Layout l{.units = int(units), .items = int(items), .tables_aligned = tables_aligned(a)};
      const int64_t passes = divide_up(items, kMostThreads);  // of equal size
      const int threads = int(divide_up(divide_up(items, passes), 32) * 32);
      const int64_t blocks = std::min<int64_t>(positions, int64_t{1} << 30);
      if (a.interleaved)
        launch(&rotate_vectors<T, true>, blocks, threads, stream, a, l);
      else
        launch(&rotate_vectors<T, false>, blocks, threads, stream, a, l);
      return;
    }
    const int64_t items = positions * heads * (a.dim - a.rotary_dim / 2);
    const int64_t blocks = std::min<int64_t>(divide_up(items, kThreads), int64_t{multiprocessors()} * 64);
    launch(&rotate_elements<T>, blocks, kThreads, stream, a);
  });
}

}  // namespace rotary::cuda
