// The gated RMSNorm on a GPU. A group of a row is in registers of `lanes` threads, kHeld vectors of 16 bytes each; or
// it is read twice, a number at a time, where it is too long or not at whole vectors.
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
  int64_t units;   // forward: rows x groups; backward: chunks x groups
  int64_t chunk;   // rows
};

template <class T>
__device__ __forceinline__ T* row_of(const void* data, int64_t row, int64_t stride) {
  return static_cast<T*>(const_cast<void*>(data)) + row * stride;
}

// This thread's vector k of a group.
template <class T>
__device__ __forceinline__ int64_t column(int k, int lanes) {
  return (int64_t{k} * lanes + int(threadIdx.x) % lanes) * kPerVector<T>;
}

template <class T, int kHeld, int kMaxLanes, bool kNormFirst>
__global__ void __launch_bounds__(kMaxLanes, 1280 / kMaxLanes) forward_held(const Forward a, const Layout l) {
  constexpr int kN = kPerVector<T>;
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t wanted = int64_t{blockIdx.x} * (int(blockDim.x) / l.lanes) + int(threadIdx.x) / l.lanes;
  const int64_t unit = wanted < l.units ? wanted : l.units - 1;  // all lanes take part in sums
  const int64_t row = l.groups == 1 ? unit : unit / l.groups, group = unit - row * l.groups, first = group * p.group;
  const T *x = row_of<T>(p.x, row, p.x_stride) + first, *z = row_of<T>(p.z, row, p.z_stride) + first;
  Pack<T, kN> gates[kHeld];
  float u[kHeld][kN], squares[1] = {0.f};
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t c = column<T>(k, l.lanes);
    if (c >= p.group) continue;
    gates[k] = load<kN>(z + c);
    load_floats<kN>(x + c, u[k]);
  }
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (column<T>(k, l.lanes) >= p.group) continue;
    float gate[kN];
    unpack(gates[k], gate);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      if constexpr (!kNormFirst) u[k][i] *= gate_of(gate[i]).value;
      squares[0] += u[k][i] * u[k][i];
    }
  }
  RowSum<1> sum(memory, l.lanes);
  sum(squares);
  const float rstd = rsqrtf(squares[0] / float(p.group) + p.eps);
  if (wanted >= l.units) return;
  if (a.rstd != nullptr && int(threadIdx.x) % l.lanes == 0) a.rstd[unit] = rstd;
  T* y = row_of<T>(a.y, row, p.cols) + first;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t c = column<T>(k, l.lanes);
    if (c >= p.group) continue;
    float gate[kN], weight[kN];
    unpack(gates[k], gate);
    load_floats<kN>(p.weight + first + c, weight);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      u[k][i] *= rstd * weight[i];
      if constexpr (kNormFirst) u[k][i] *= gate_of(gate[i]).value;
    }
    store_floats<kN>(y + c, u[k]);
  }
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

// A block goes through a chunk of rows, for the sums of dweight. While it works on one the next is on its way to shared
// memory, each thread's vectors to its own place.
constexpr int kRowsHeld = 2, kBackwardTensors = 3;
template <class T, int kHeld, int kMaxLanes, bool kNormFirst>
__global__ void __launch_bounds__(kMaxLanes, 640 / kMaxLanes) backward_held(const Backward a, const Layout l) {
  constexpr int kN = kPerVector<T>;
  __shared__ typename RowSum<1>::Memory memory;
  extern __shared__ uint4 ring[];  // [kRowsHeld][kBackwardTensors][kHeld][kMaxLanes]
  const Problem& p = a.of;
  const int64_t wanted = int64_t{blockIdx.x} * (int(blockDim.x) / l.lanes) + int(threadIdx.x) / l.lanes;
  const int64_t unit = wanted < l.units ? wanted : l.units - 1;
  const int64_t chunk = unit / l.groups, group = unit % l.groups, first = group * p.group, begin = chunk * l.chunk;
  const int64_t left = wanted < l.units ? p.rows - begin : 0;
  const int count = int(left < l.chunk ? left : l.chunk);
  const auto place = [&](int row, int tensor, int k) {
    return ring + ((row % kRowsHeld * kBackwardTensors + tensor) * kHeld + k) * kMaxLanes + threadIdx.x;
  };
  const int64_t at = first + column<T>(0, l.lanes);
  const int apart = l.lanes * kN, has = int(p.group - column<T>(0, l.lanes));  // of vector k: what is above k x apart
  const T* next[kBackwardTensors] = {row_of<T>(p.x, begin, p.x_stride) + at, row_of<T>(p.z, begin, p.z_stride) + at,
                                     row_of<T>(a.dy, begin, a.dy_stride) + at};
  T *dx = row_of<T>(a.dx, begin, p.cols) + at, *dz = row_of<T>(a.dz, begin, p.cols) + at;
  const auto send = [&](int row) {
#pragma unroll
    for (int t = 0; t < kBackwardTensors; ++t) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k)
        cp_async<16>(place(row, t, k), next[t] + k * apart, row >= count || k * apart >= has);
    }
    cp_async_commit();
    next[0] += p.x_stride, next[1] += p.z_stride, next[2] += a.dy_stride;
  };
  const auto get = [&](int row, int tensor, int k, float(&f)[kN]) {
    load_floats<kN>(reinterpret_cast<const T*>(place(row, tensor, k)), f);
  };
  const float* rstds = a.rstd + begin * l.groups + group;
  send(0);
  float dweight[kHeld][kN] = {}, next_rstd = count > 0 ? *rstds : 0.f;
  RowSum<1> sum(memory, l.lanes);
  const float share = 1.f / float(p.group);
  for (int row = 0; row < int(l.chunk); ++row) {  // as often in every thread: lanes of a warp may have several groups
    const float rstd = next_rstd;
    rstds += l.groups;
    if (row + 1 < count) next_rstd = *rstds;
    send(row + 1);
    cp_async_wait<1>();
    float s[kHeld][kN], g[kHeld][kN], dot[1] = {0.f};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      float x[kN], z[kN], dy[kN], weight[kN] = {};
      if (k * apart < has) load_floats<kN>(p.weight + at + k * apart, weight);
      get(row, 0, k, x), get(row, 1, k, z), get(row, 2, k, dy);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        s[k][i] = sigmoid(z[i]);
        const float u = x[i] * (z[i] * s[k][i]), by_rstd = dy[i] * rstd;
        dweight[k][i] += by_rstd * u;
        g[k][i] = by_rstd * weight[i];
        dot[0] += g[k][i] * u;
      }
    }
    sum(dot);
    const float slope = slope_of(dot[0], rstd, share);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      float x[kN], z[kN];
      get(row, 0, k, x), get(row, 1, k, z);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const Gradients own = differentiate<kNormFirst>(g[k][i], x[i], gated(z[i], s[k][i], 1.f), slope);
        x[i] = own.dx, z[i] = own.dz;
      }
      if (row >= count || k * apart >= has) continue;
      store_floats<kN>(dx + k * apart, x);
      store_floats<kN>(dz + k * apart, z);
    }
    dx += p.cols, dz += p.cols;
  }
  cp_async_wait<0>();
  if (wanted >= l.units) return;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (k * apart < has) store_floats<kN>(a.partial + chunk * p.cols + at + k * apart, dweight[k]);
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
