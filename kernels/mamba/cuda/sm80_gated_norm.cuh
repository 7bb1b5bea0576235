// The gated RMSNorm on a GPU. `lanes` threads, a part of a warp or a block, hold a group, kHeld vectors of 16 bytes
// each; in backward they go through a chunk of rows while later rows are on their way. Or a group is read twice, an
// element at a time, where it is too long or not at whole vectors.
#pragma once

#include "kernels/common/gpu/activations.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/view.cuh"
#include "kernels/mamba/gated_norm.h"

namespace mamba::gated_norm::gpu {

using namespace mamba::gpu;

constexpr int kTwoPassThreads = 256;

struct Layout {
  int lanes;       // of a group: a part of a warp, or a block
  int64_t groups;  // of a row
  int64_t units;   // chunks x groups
  int64_t chunk;   // rows; forward's is 1
};

template <class T>
__device__ __forceinline__ T* row_of(const void* data, int64_t row, int64_t stride) {
  return static_cast<T*>(const_cast<void*>(data)) + row * stride;
}

// A thread's vectors of the rows of a chunk, on their way to shared memory while earlier rows are computed. Each thread
// copies what it reads itself, so that no barrier is needed.
template <class T, int kTensors, int kHeld, int kRows>
struct Ring {
  static constexpr int kN = kPerVector<T>;
  static constexpr int64_t kBytesOfThread = int64_t{kernels::kVectorBytes} * kRows * kTensors * kHeld;

  uint4* mine;  // [kRows][kTensors][kHeld][threads of the block], at this thread
  const T* next[kTensors];
  int apart, has;  // elements from one vector of this thread to the next, and of the group from its first one on
  int sent = 0, at = 0;

  __device__ __forceinline__ uint4* slot(int row, int tensor, int k) const {
    return mine + ((row * kTensors + tensor) * kHeld + k) * int(blockDim.x);
  }
  // The next row, or zeros. strides: of each tensor, from one row to the next.
  template <class... Strides>
  __device__ __forceinline__ void send(bool is_there, Strides... strides) {
    const int64_t stride[kTensors] = {strides...};
#pragma unroll
    for (int t = 0; t < kTensors; ++t) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k)
        cp_async<16>(slot(sent, t, k), next[t] + k * apart, !is_there || k * apart >= has);
      next[t] += stride[t];
    }
    cp_async_commit();
    sent = sent + 1 == kRows ? 0 : sent + 1;
  }
  __device__ __forceinline__ void get(int tensor, int k, float (&f)[kN]) const {
    load_floats<kN>(reinterpret_cast<const T*>(slot(at, tensor, k)), f);
  }
  __device__ __forceinline__ void advance() { at = at + 1 == kRows ? 0 : at + 1; }
};

// The rows of one group that `lanes` threads go through.
template <class T>
struct Walk {
  static constexpr int kN = kPerVector<T>;
  bool any;  // else this thread only takes part in sums
  int64_t chunk, group, begin, first;
  int lane, count;  // count: of rows

  __device__ Walk(const Problem& p, const Layout& l) {
    const int64_t wanted = int64_t{blockIdx.x} * (int(blockDim.x) / l.lanes) + int(threadIdx.x) / l.lanes;
    const int64_t unit = wanted < l.units ? wanted : l.units - 1;
    any = wanted < l.units;
    chunk = l.groups == 1 ? unit : unit / l.groups, group = unit - chunk * l.groups, begin = chunk * l.chunk;
    lane = int(threadIdx.x) % l.lanes, first = group * p.group + int64_t{lane} * kN;
    const int64_t left = any ? p.rows - begin : 0;
    count = int(left < 0 ? 0 : left < l.chunk ? left : l.chunk);
  }
  __device__ __forceinline__ const T* at(const void* data, int64_t stride) const {
    return row_of<T>(data, begin, stride) + first;
  }
};

// A block of forward has one group, or several where each is a part of a warp (kMaxLanes = kPartsOfWarp).
constexpr int kPartsOfWarp = 0, kPartsBlock = 128;
constexpr int forward_block(int max_lanes) { return max_lanes == kPartsOfWarp ? kPartsBlock : max_lanes; }
// Blocks of a multiprocessor that forward's registers are shared out among.
constexpr int forward_blocks(int held, int max_lanes) { return (held == 1 ? 1536 : 1024) / forward_block(max_lanes); }

// A group from its only load to its store, all of a thread's loads at once. No loop over rows: blocks that come and go
// keep as many loads on their way as a ring would, and take a tenth less time. What stands before the first load is
// short for the same reason.
template <class T, int kHeld, int kMaxLanes, bool kNormFirst>
__global__ void __launch_bounds__(forward_block(kMaxLanes), forward_blocks(kHeld, kMaxLanes))
    forward_held(const Forward a, const Layout l) {
  constexpr int kN = kPerVector<T>;
  const Problem& p = a.of;
  int lanes = int(blockDim.x), lane = int(threadIdx.x);
  int64_t unit = blockIdx.x;
  if constexpr (kMaxLanes == kPartsOfWarp) {  // lanes are a power of two
    lanes = l.lanes;
    unit = unit * (kPartsBlock / lanes) + lane / lanes;
    lane &= lanes - 1;
  }
  const int64_t row = l.groups == 1 ? unit : unit / l.groups;
  const int64_t first = (unit - row * l.groups) * p.group + lane * kN;
  const int apart = lanes * kN, left = unit < l.units ? int(p.group) - lane * kN : 0;
  const auto has = [&](int k) { return k * apart < left; };
  grid_dependency_wait();
  Pack<T, kN> x[kHeld], z[kHeld];
  const T *x_at = row_of<T>(p.x, row, p.x_stride) + first, *z_at = row_of<T>(p.z, row, p.z_stride) + first;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    x[k] = has(k) ? load_evict_last<kN>(x_at) : Pack<T, kN>{};
    z[k] = has(k) ? load_evict_last<kN>(z_at) : Pack<T, kN>{};
    x_at += apart, z_at += apart;
  }
  constexpr bool kKeeps = kHeld <= 2;  // else computed again: registers are few
  float kept[kKeeps ? kHeld : 1][kN], squares = 0.f;
  const auto compute = [&](int k, float(&u)[kN]) {
    float gate[kN];
    unpack(x[k], u);
    unpack(z[k], gate);
#pragma unroll
    for (int i = 0; !kNormFirst && i < kN; ++i) u[i] *= gate_of(gate[i]).value;
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float(&u)[kN] = kept[kKeeps ? k : 0];
    compute(k, u);
#pragma unroll
    for (int i = 0; i < kN; ++i) squares += u[i] * u[i];
  }
  const float rstd = rsqrtf(sum_once<kMaxLanes>(squares, lanes) / float(p.group) + p.eps);
  if (left > 0 && a.rstd != nullptr && lane == 0) a.rstd[unit] = rstd;
  const float* weights = p.weight + first;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float weight[kN] = {}, (&u)[kN] = kept[kKeeps ? k : 0];
    if constexpr (!kKeeps) {
      force_reunpack(x[k]);
      force_reunpack(z[k]);
      compute(k, u);
    }
    if constexpr (kNormFirst) {
      float gate[kN];
      unpack(z[k], gate);
#pragma unroll
      for (int i = 0; i < kN; ++i) u[i] *= gate_of(gate[i]).value;
    }
    if constexpr (!kKeeps) asm volatile("" ::: "memory");  // weights later: they take registers, too
    if (has(k)) load_floats<kN>(weights, weight);
    weights += apart;
#pragma unroll
    for (int i = 0; i < kN; ++i) u[i] *= rstd * weight[i];
    x[k] = pack<T>(u);
  }
  // Together, after all the arithmetic: a row's writes arrive in memory side by side.
  T* y = row_of<T>(a.y, row, p.cols) + first;
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (has(k)) store(y + k * apart, x[k]);
}

// Gradients of one number, from g = dy rstd weight; slope: mean(g n) / x, or / (x silu(z)).
struct Gradients {
  float dx, dz;
};
template <bool kNormFirst>
__device__ __forceinline__ Gradients differentiate(float g, float x, Both gate, float slope) {
  if constexpr (kNormFirst) return {g * gate.value - x * slope, g * x * gate.slope};
  const float du = g - x * gate.value * slope;
  return {du * gate.value, du * x * gate.slope};
}
// From the sum over the group of g x silu(z).
__device__ __forceinline__ float slope_of(float dot, float rstd, float share) { return dot * share * (rstd * rstd); }

// Gates and what dy is multiplied by are kept until a row's sum is known, or computed again where registers are few.
template <int kHeld>
constexpr bool kKeepsGates = kHeld <= 2;
constexpr int kBackwardThreads = 640;
constexpr int kWideBlock = 512;
template <int kMaxLanes>
constexpr int kBackwardRows = kMaxLanes == kWideBlock ? 2 : 3;  // of a wide block more would not fit
template <class T, int kHeld, int kMaxLanes>
using BackwardRing = Ring<T, 3, kHeld, kBackwardRows<kMaxLanes>>;

template <class T, int kHeld, int kMaxLanes, bool kNormFirst>
__global__ void __launch_bounds__(kMaxLanes, kBackwardThreads / kMaxLanes)
    backward_held(const Backward a, const Layout l) {
  constexpr int kN = kPerVector<T>, kRows = kBackwardRows<kMaxLanes>;
  constexpr bool kKeeps = kKeepsGates<kHeld>;
  __shared__ typename RowSum<1>::Memory memory;
  extern __shared__ uint4 ring_memory[];
  const Problem& p = a.of;
  const Walk<T> walk(p, l);
  BackwardRing<T, kHeld, kMaxLanes> ring{
      ring_memory + threadIdx.x,
      {walk.at(p.x, p.x_stride), walk.at(p.z, p.z_stride), walk.at(a.dy, a.dy_stride)},
      l.lanes * kN,
      int(p.group) - walk.lane * kN};
  grid_dependency_wait();
  launch_dependents();
  T* dx = row_of<T>(a.dx, walk.begin, p.cols) + walk.first;
  T* dz = row_of<T>(a.dz, walk.begin, p.cols) + walk.first;
  const float* rstds = a.rstd + walk.begin * l.groups + walk.group;
#pragma unroll
  for (int row = 0; row < kRows - 1; ++row) ring.send(row < walk.count, p.x_stride, p.z_stride, a.dy_stride);
  float dweight[kHeld][kN] = {};
  RowSum<1> sum(memory, l.lanes);
  const float share = 1.f / float(p.group);
  const auto weight_of = [&](int k, float(&weight)[kN]) {
#pragma unroll
    for (int i = 0; i < kN; ++i) weight[i] = 0.f;
    if (k * ring.apart < ring.has) load_floats<kN>(p.weight + walk.first + k * ring.apart, weight);
  };
  for (int row = 0; row < int(l.chunk); ++row) {  // as often in every thread: lanes of a warp may have several groups
    const float rstd = row < walk.count ? *rstds : 0.f;  // used when the copies are there
    rstds += l.groups;
    ring.send(row + kRows - 1 < walk.count, p.x_stride, p.z_stride, a.dy_stride);
    cp_async_wait<kRows - 1>();
    float s[kKeeps ? kHeld : 1][kN], g[kKeeps ? kHeld : 1][kN], dot[1] = {0.f};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      float x[kN], z[kN], dy[kN], weight[kN];
      weight_of(k, weight);
      ring.get(0, k, x), ring.get(1, k, z), ring.get(2, k, dy);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const float gate = sigmoid(z[i]), u = x[i] * (z[i] * gate), by_rstd = dy[i] * rstd,
                    by_weight = by_rstd * weight[i];
        if constexpr (kKeeps) s[k][i] = gate, g[k][i] = by_weight;
        dweight[k][i] += by_rstd * u;
        dot[0] += by_weight * u;
      }
    }
    sum(dot);
    const float slope = slope_of(dot[0], rstd, share);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      float x[kN], z[kN], dy[kN], weight[kN];
      ring.get(0, k, x), ring.get(1, k, z);
      if constexpr (!kKeeps) ring.get(2, k, dy), weight_of(k, weight);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        float gate, by_weight;
        if constexpr (kKeeps)
          gate = s[k][i], by_weight = g[k][i];
        else
          gate = sigmoid(z[i]), by_weight = dy[i] * rstd * weight[i];
        const Gradients own = differentiate<kNormFirst>(by_weight, x[i], gated(z[i], gate, 1.f), slope);
        x[i] = own.dx, z[i] = own.dz;
      }
      if (row >= walk.count || k * ring.apart >= ring.has) continue;
      store_floats<kN>(dx + k * ring.apart, x);
      store_floats<kN>(dz + k * ring.apart, z);
    }
    dx += p.cols, dz += p.cols;
    ring.advance();
  }
  cp_async_wait<0>();
  if (!walk.any) return;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (k * ring.apart < ring.has)
      store_floats<kN>(a.partial + walk.chunk * p.cols + walk.first + k * ring.apart, dweight[k]);
  }
}

// ---- a block a group, whose elements are read twice
template <class T, bool kNormFirst>
__global__ void __launch_bounds__(kTwoPassThreads) forward_two_pass(const Forward a, const Layout l) {
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t row = blockIdx.x / l.groups, group = blockIdx.x % l.groups, first = group * p.group;
  const T *x = row_of<T>(p.x, row, p.x_stride) + first, *z = row_of<T>(p.z, row, p.z_stride) + first;
  float squares[1] = {0.f};
  for (int64_t c = threadIdx.x; c < p.group; c += kTwoPassThreads) {
    float u = to_float(x[c]);
    if constexpr (!kNormFirst) u *= gate_of(to_float(z[c])).value;
    squares[0] += u * u;
  }
  RowSum<1> sum(memory, kTwoPassThreads);
  sum(squares);
  const float rstd = rsqrtf(squares[0] / float(p.group) + p.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[blockIdx.x] = rstd;
  for (int64_t c = threadIdx.x; c < p.group; c += kTwoPassThreads) {
    const float y = to_float(x[c]) * gate_of(to_float(z[c])).value * rstd * p.weight[first + c];
    row_of<T>(a.y, row, p.cols)[first + c] = from_float<T>(y);
  }
}

template <class T, bool kNormFirst>
__global__ void __launch_bounds__(kTwoPassThreads) backward_again(const Backward a, const Layout l) {
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t row = blockIdx.x / l.groups, group = blockIdx.x % l.groups, first = group * p.group;
  const T *x = row_of<T>(p.x, row, p.x_stride) + first, *z = row_of<T>(p.z, row, p.z_stride) + first;
  const T* dy = row_of<T>(a.dy, row, a.dy_stride) + first;
  const float rstd = a.rstd[blockIdx.x];
  float dot[1] = {0.f};
  for (int64_t c = threadIdx.x; c < p.group; c += kTwoPassThreads)
    dot[0] += to_float(dy[c]) * rstd * p.weight[first + c] * to_float(x[c]) * gate_of(to_float(z[c])).value;
  RowSum<1> sum(memory, kTwoPassThreads);
  sum(dot);
  const float slope = slope_of(dot[0], rstd, 1.f / float(p.group));
  for (int64_t c = threadIdx.x; c < p.group; c += kTwoPassThreads) {
    const float gate = to_float(z[c]);
    const Gradients g = differentiate<kNormFirst>(to_float(dy[c]) * rstd * p.weight[first + c], to_float(x[c]),
                                                  gated(gate, sigmoid(gate), 1.f), slope);
    row_of<T>(a.dx, row, p.cols)[first + c] = from_float<T>(g.dx);
    row_of<T>(a.dz, row, p.cols)[first + c] = from_float<T>(g.dz);
  }
}
// Its dweight: a thread has a column of a chunk of rows.
template <class T, bool kNormFirst>
__global__ void __launch_bounds__(kTwoPassThreads) weight_again(const Backward a, const Layout l, int64_t blocks) {
  const Problem& p = a.of;
  const int64_t chunk = blockIdx.x / blocks, c = blockIdx.x % blocks * kTwoPassThreads + threadIdx.x;
  if (c >= p.cols) return;
  const int64_t end = (chunk + 1) * l.chunk < p.rows ? (chunk + 1) * l.chunk : p.rows;
  float total = 0.f;
  for (int64_t row = chunk * l.chunk; row < end; ++row) {
    const float x = to_float(row_of<T>(p.x, row, p.x_stride)[c]), z = to_float(row_of<T>(p.z, row, p.z_stride)[c]);
    const float dy = to_float(row_of<T>(a.dy, row, a.dy_stride)[c]);
    total += dy * x * a.rstd[row * l.groups + c / p.group] * gate_of(z).value;
  }
  a.partial[chunk * p.cols + c] = total;
}

}  // namespace mamba::gated_norm::gpu
