// Rotary embedding on a GPU. A thread takes one vector of one head, or two that are turned together; threads beside
// each other take the heads of q and k of one position, so its tables are in the cache.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/rotary/cuda/rotary.h"

namespace rotary::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

// Small blocks without a loop: what has ended makes room for the next at once. More than one head a thread loses a
// tenth.
constexpr int kThreads = 128, kElementThreads = 256;
constexpr int64_t kMaxItems = (int64_t{1} << 31) - kThreads;  // that a Divider takes, whatever a block has beyond them
// Blocks that registers are shared out among: wider tables need more of them, and from sm_100 on so does the same code.
template <class T, class C>
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kBlocks = 8;
#else
constexpr int kBlocks = sizeof(C) > sizeof(T) ? 8 : 12;
#endif

// What one position does to a thread's elements, as it lies in memory.
template <class C, int N>
struct Angles {
  Pack<C, N> cos[2], sin[2];
};

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

template <class C, int N>
__device__ __forceinline__ Angles<C, N> angles(const RotaryArgs& a, int64_t b, int64_t time, int unit) {
  const int64_t second = a.half_table ? 0 : a.rotary_dim / 2;
  const C* cos = static_cast<const C*>(a.cos) + b * a.cos_stride[0] + time * a.cos_stride[1] + unit * N;
  const C* sin = static_cast<const C*>(a.sin) + b * a.sin_stride[0] + time * a.sin_stride[1] + unit * N;
  return {{load<N>(cos), load<N>(cos + second)}, {load<N>(sin), load<N>(sin + second)}};
}

// y[a] = x[a] c1 - x[b] s1, y[b] = x[b] c2 + x[a] s2; backward with (-s2, -s1) for (s1, s2).
template <class T, class C, int N>
__device__ __forceinline__ void rotate_half(T* y, int64_t far, const Pack<T, N>& va, const Pack<T, N>& vb,
                                            const Angles<C, N>& t, bool backward) {
  float xa[N], xb[N], c1[N], s1[N], c2[N], s2[N];
  unpack(va, xa);
  unpack(vb, xb);
  unpack(t.cos[0], c1);
  unpack(t.cos[1], c2);
  unpack(t.sin[0], s1);
  unpack(t.sin[1], s2);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float one = xa[i], two = xb[i];
    xa[i] = turn(one, c1[i], two, backward ? s2[i] : -s1[i]);
    xb[i] = turn(two, c2[i], one, backward ? -s1[i] : s2[i]);
  }
  store_floats<N>(y, xa);
  store_floats<N>(y + far, xb);
}

// One entry of the tables serves both members of a pair: half a vector of elements, of any alignment.
template <class T, class C, int N>
__device__ __forceinline__ void rotate_pairs(T* y, const Pack<T, N>& v, const C* cos, const C* sin, bool backward) {
  float f[N];
  unpack(v, f);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const float one = f[2 * i], two = f[2 * i + 1], c = to_float(cos[i]), s = to_float(sin[i]);
    f[2 * i] = turn(one, c, two, backward ? s : -s);
    f[2 * i + 1] = turn(two, c, one, backward ? -s : s);
  }
  store_floats<N>(y, f);
}

// A head's items: `turned` that are turned (a vector of each half, or one of pairs), then vectors that pass through.
// All items of all heads and positions are numbered below 2^31.
struct Shares {
  uint32_t positions, per_position, items;  // items: of a head
  Divider position_of, batch_of, head_of;   // of an item's number, of a position, of a number within a position
};
template <class T, class C, bool kInterleaved>
__global__ void __launch_bounds__(kThreads, kBlocks<T, C>) rotate_vectors(const RotaryArgs a, int turned, Shares s) {
  constexpr int N = kPerVector<T>;
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t position = s.position_of(at), b = s.batch_of(position), item = at - position * s.per_position;
  const uint32_t head_index = s.head_of(item);
  const int unit = int(item - head_index * s.items);
  const int64_t time = position - int64_t{b} * a.time, far = a.rotary_dim / 2;
  grid_dependency_wait();
  if (position >= s.positions) return;
  const Head head = head_at(a, b, time, head_index);
  const T* x = static_cast<const T*>(head.x) + head.x_at;
  T* y = static_cast<T*>(head.y) + head.y_at;
  if (unit >= turned) {
    const int64_t col = a.rotary_dim + (unit - turned) * N;
    if (x != y) store(y + col, load<N>(x + col));
    return;
  }
  const Pack<T, N> va = load<N>(x + unit * N);
  if constexpr (kInterleaved) {
    const C* cos = static_cast<const C*>(a.cos) + b * a.cos_stride[0] + time * a.cos_stride[1];
    const C* sin = static_cast<const C*>(a.sin) + b * a.sin_stride[0] + time * a.sin_stride[1];
    rotate_pairs<T, C, N>(y + unit * N, va, cos + unit * (N / 2), sin + unit * (N / 2), a.backward);
  } else {
    const Pack<T, N> vb = load<N>(x + unit * N + far);
    const Angles<C, N> t = angles<C, N>(a, b, time, unit);  // after x: memory answers both at once
    rotate_half<T, C, N>(y + unit * N, far, va, vb, t, a.backward);
  }
}

// Any strides, any sizes: a thread a pair, or an element that passes through.
template <class T>
__global__ void __launch_bounds__(kElementThreads) rotate_elements(const RotaryArgs a) {
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
    const auto vectors = [&]<typename C>() {
      const int64_t vector = kPerVector<T>, turned = a.rotary_dim / vector / (a.interleaved ? 1 : 2);
      const int64_t items = turned + (a.dim - a.rotary_dim) / vector;
      const int64_t blocks = divide_up(positions * heads * items, kThreads);
      const Shares shares{uint32_t(positions),    uint32_t(heads * items), uint32_t(items),
                          Divider(heads * items), Divider(a.time),         Divider(items)};
      const auto kernel = a.interleaved ? &rotate_vectors<T, C, true> : &rotate_vectors<T, C, false>;
      launch_after(kernel, blocks, kThreads, stream, a, int(turned), shares);
    };
    const bool fit = vectors_fit(a) && (a.interleaved || tables_aligned(a)) && positions * heads * a.dim <= kMaxItems;
    if (fit && a.table_dtype == a.dtype) return vectors.template operator()<T>();
    if constexpr (sizeof(T) == 2) {
      if (fit && a.table_dtype == DType::kFloat32) return vectors.template operator()<float>();
    }
    const int64_t items = positions * heads * (a.dim - a.rotary_dim / 2);
    const int64_t blocks = std::min<int64_t>(divide_up(items, kElementThreads), int64_t{multiprocessors()} * 64);
    launch(&rotate_elements<T>, blocks, kElementThreads, stream, a);
  });
}

}  // namespace rotary::cuda
