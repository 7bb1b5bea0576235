// The gated RMSNorm on a GPU. A group of a row is in registers of `lanes` threads, kHeld vectors of 16 bytes each; or
// it is read twice, a number at a time, where it is too long or not at whole vectors.
#pragma once

#include "kernels/mamba/cuda/view.cuh"
#include "kernels/mamba/gated_norm.h"

namespace mamba::gated_norm::gpu {

using namespace mamba::gpu;

constexpr int kAgainThreads = 256;

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

template <class T, int kHeld, int kMostLanes, bool kNormFirst>
__global__ void __launch_bounds__(kMostLanes) forward_held(const Forward a, const Layout l) {
  constexpr int kN = kPerVector<T>;
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t wanted = int64_t{blockIdx.x} * (int(blockDim.x) / l.lanes) + int(threadIdx.x) / l.lanes;
  const int64_t unit = wanted < l.units ? wanted : l.units - 1;  // all lanes take part in sums
  const int64_t row = unit / l.groups, group = unit % l.groups, first = group * p.group;
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
  const float rstd = 1.f / sqrtf(squares[0] / float(p.group) + p.eps);
  if (wanted >= l.units) return;
  if (a.rstd != nullptr && int(threadIdx.x) % l.lanes == 0) a.rstd[unit] = rstd;
  T* y = row_of<T>(a.y, row, p.cols) + first;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t c = column<T>(k, l.lanes);
    if (c >= p.group) continue;
    float gate[kN], weight[kN];
    unpack(gates[k], gate);
    load_any<kN>(p.weight, DType::kFloat32, first + c, true, weight);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      u[k][i] *= rstd * weight[i];
      if constexpr (kNormFirst) u[k][i] *= gate_of(gate[i]).value;
    }
    store_floats<kN>(y + c, u[k]);
  }
}

// Gradients of one number; slope: n mean(g n) / u.
struct Gradients {
  float dx, dz, dweight;
};
template <bool kNormFirst>
__device__ __forceinline__ Gradients differentiate(float dy, float x, float z, float weight, float rstd, float slope) {
  const Gate gate = gate_of(z);
  const float g = dy * weight;
  if constexpr (kNormFirst) {
    return {rstd * (g * gate.value - x * slope), g * x * rstd * gate.slope, dy * x * rstd * gate.value};
  } else {
    const float du = rstd * (g - x * gate.value * slope);
    return {du * gate.value, du * x * gate.slope, dy * x * rstd * gate.value};
  }
}

// A block goes through a chunk of rows, for the sums of dweight.
template <class T, int kHeld, int kMostLanes, bool kNormFirst>
__global__ void __launch_bounds__(kMostLanes) backward_held(const Backward a, const Layout l) {
  constexpr int kN = kPerVector<T>;
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t wanted = int64_t{blockIdx.x} * (int(blockDim.x) / l.lanes) + int(threadIdx.x) / l.lanes;
  const int64_t unit = wanted < l.units ? wanted : l.units - 1;
  const int64_t chunk = unit / l.groups, group = unit % l.groups, first = group * p.group;
  float dweight[kHeld][kN] = {}, weight[kHeld][kN];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t c = column<T>(k, l.lanes);
    if (c < p.group) load_any<kN>(p.weight, DType::kFloat32, first + c, true, weight[k]);
  }
  RowSum<1> sum(memory, l.lanes);
  for (int64_t r = 0; r < l.chunk; ++r) {  // as often in every thread: lanes of a warp may have several groups
    const int64_t row = chunk * l.chunk + r;
    const bool inside = row < p.rows && wanted < l.units;
    const T *x = row_of<T>(p.x, row, p.x_stride) + first, *z = row_of<T>(p.z, row, p.z_stride) + first;
    const T* dy = row_of<T>(a.dy, row, a.dy_stride) + first;
    Pack<T, kN> xs[kHeld], zs[kHeld], dys[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t c = column<T>(k, l.lanes);
      if (!inside || c >= p.group) continue;
      xs[k] = load<kN>(x + c), zs[k] = load<kN>(z + c), dys[k] = load<kN>(dy + c);
    }
    const float rstd = inside ? a.rstd[row * l.groups + group] : 0.f;
    float dot[1] = {0.f};
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!inside || column<T>(k, l.lanes) >= p.group) continue;
      float xf[kN], zf[kN], df[kN];
      unpack(xs[k], xf), unpack(zs[k], zf), unpack(dys[k], df);
#pragma unroll
      for (int i = 0; i < kN; ++i) dot[0] += df[i] * weight[k][i] * xf[i] * gate_of(zf[i]).value;
    }
    sum(dot);
    const float slope = dot[0] * rstd * rstd / float(p.group);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int64_t c = column<T>(k, l.lanes);
      if (!inside || c >= p.group) continue;
      float xf[kN], zf[kN], df[kN];
      unpack(xs[k], xf), unpack(zs[k], zf), unpack(dys[k], df);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const Gradients g = differentiate<kNormFirst>(df[i], xf[i], zf[i], weight[k][i], rstd, slope);
        xf[i] = g.dx, zf[i] = g.dz;
        dweight[k][i] += g.dweight;
      }
      store_floats<kN>(row_of<T>(a.dx, row, p.cols) + first + c, xf);
      store_floats<kN>(row_of<T>(a.dz, row, p.cols) + first + c, zf);
    }
  }
  if (wanted >= l.units) return;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    const int64_t c = column<T>(k, l.lanes);
    if (c < p.group) store_floats<kN>(a.partial + chunk * p.cols + first + c, dweight[k]);
  }
}

// ---- a block a group, whose numbers are read twice
template <class T, bool kNormFirst>
__global__ void __launch_bounds__(kAgainThreads) forward_again(const Forward a, const Layout l) {
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t row = blockIdx.x / l.groups, group = blockIdx.x % l.groups, first = group * p.group;
  const T *x = row_of<T>(p.x, row, p.x_stride) + first, *z = row_of<T>(p.z, row, p.z_stride) + first;
  float squares[1] = {0.f};
  for (int64_t c = threadIdx.x; c < p.group; c += kAgainThreads) {
    float u = to_float(x[c]);
    if constexpr (!kNormFirst) u *= gate_of(to_float(z[c])).value;
    squares[0] += u * u;
  }
  RowSum<1> sum(memory, kAgainThreads);
  sum(squares);
  const float rstd = 1.f / sqrtf(squares[0] / float(p.group) + p.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[blockIdx.x] = rstd;
  for (int64_t c = threadIdx.x; c < p.group; c += kAgainThreads) {
    const float y = to_float(x[c]) * gate_of(to_float(z[c])).value * rstd * p.weight[first + c];
    row_of<T>(a.y, row, p.cols)[first + c] = from_float<T>(y);
  }
}

template <class T, bool kNormFirst>
__global__ void __launch_bounds__(kAgainThreads) backward_again(const Backward a, const Layout l) {
  __shared__ typename RowSum<1>::Memory memory;
  const Problem& p = a.of;
  const int64_t row = blockIdx.x / l.groups, group = blockIdx.x % l.groups, first = group * p.group;
  const T *x = row_of<T>(p.x, row, p.x_stride) + first, *z = row_of<T>(p.z, row, p.z_stride) + first;
  const T* dy = row_of<T>(a.dy, row, a.dy_stride) + first;
  float dot[1] = {0.f};
  for (int64_t c = threadIdx.x; c < p.group; c += kAgainThreads)
    dot[0] += to_float(dy[c]) * p.weight[first + c] * to_float(x[c]) * gate_of(to_float(z[c])).value;
  RowSum<1> sum(memory, kAgainThreads);
  sum(dot);
  const float rstd = a.rstd[blockIdx.x], slope = dot[0] * rstd * rstd / float(p.group);
  for (int64_t c = threadIdx.x; c < p.group; c += kAgainThreads) {
    const Gradients g =
        differentiate<kNormFirst>(to_float(dy[c]), to_float(x[c]), to_float(z[c]), p.weight[first + c], rstd, slope);
    row_of<T>(a.dx, row, p.cols)[first + c] = from_float<T>(g.dx);
    row_of<T>(a.dz, row, p.cols)[first + c] = from_float<T>(g.dz);
  }
}
// Its dweight: a thread has a column of a chunk of rows.
template <class T, bool kNormFirst>
__global__ void __launch_bounds__(kAgainThreads) weight_again(const Backward a, const Layout l, int64_t blocks) {
  const Problem& p = a.of;
  const int64_t chunk = blockIdx.x / blocks, c = blockIdx.x % blocks * kAgainThreads + threadIdx.x;
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
