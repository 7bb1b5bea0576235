// RMSNorm and AddRMSNorm on a GPU. "held": a row is in registers. Forward has a block for each row and enough blocks to
// hide one's barrier behind another's loads. "ring": backward's blocks go through many rows, for the weight's gradient,
// and the next rows are on their way to shared memory while this one is summed. "again": rows of any length, alignment
// and types, read a second time from the cache.
#pragma once

#include "kernels/norm/cuda/ring.cuh"

namespace norms::gpu {

// Blocks that registers are shared out among: 40 a thread where it has few vectors, and with a residual more.
constexpr int forward_blocks(int vectors, int lanes, bool add) {
  return (vectors < 4 ? add ? 1024 : 1536 : add ? 512 : 1024) / lanes;
}

// A block for each row, or for some rows where each is a part of a warp. No loop: it would cost registers, and time
// before the first load. share: 1 / columns.
template <class T, int kVectors, int kMaxLanes, bool kAdd, bool kFull>
__global__ void __launch_bounds__(kMaxLanes, forward_blocks(kVectors, kMaxLanes, kAdd))
    rms_forward_held(const RmsNormForward a, const Scale s, int64_t rows, int lanes, float share) {
  constexpr int N = kPerVector<T>;
  const Position<T, kVectors, kVectors == 1, kFull> p(rows, a.cols, lanes);
  const int64_t row = p.first + p.group;
  grid_dependency_wait();
  Held<T, kVectors> x, residual;
  x.fetch(a.x, a.x_stride, row, p);
  if constexpr (kAdd) residual.fetch(a.residual, a.residual_stride, row, p);
  HeldScale<T, kVectors> scale;
  scale.fetch(s, p);
  float squares = 0.f;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float f[N];
    unpack(x.v[k], f);
    if constexpr (kAdd) {
      float r[N];
      unpack(residual.v[k], r);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] += r[i];
      x.v[k] = pack<T>(f);
      if (p.has(row, k)) store(static_cast<T*>(a.h) + row * a.cols + p.col(k), x.v[k]);
      unpack(x.v[k], f);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) squares += f[i] * f[i];
  }
  squares = sum_once < kVectors == 1 ? 0 : kMaxLanes > (squares, lanes);
  x.forget_numbers();
  const float rstd = inverse_sqrt(squares * share + a.eps);
  if (a.rstd != nullptr && p.lane == 0 && row < rows) a.rstd[row] = rstd;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    float f[N], w[N];
    unpack(x.v[k], f);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] *= rstd;
    if (a.round_n) round_all<T>(f);
    scale.get(s, k, w);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] *= w[i];
    x.v[k] = pack<T>(f);
  }
  // Together, after all the arithmetic: a row's writes reach memory side by side.
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (p.has(row, k)) store(static_cast<T*>(a.y) + row * a.cols + p.col(k), x.v[k]);
  }
}

template <class T, class Y, int N>
__global__ void __launch_bounds__(512) rms_forward_two_pass(const RmsNormForward a, const Scale s, int64_t rows) {
  __shared__ typename RowSum<1>::Memory memory;
  RowSum<1> sum(memory, blockDim.x);
  const bool aligned = scale_aligned(s);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto value = [&](int64_t col, float(&f)[N]) {
      unpack(load<N>(static_cast<const T*>(a.x) + row * a.x_stride + col), f);
      if (a.residual == nullptr) return;
      float r[N];
      unpack(load<N>(static_cast<const T*>(a.residual) + row * a.residual_stride + col), r);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = rounded<T>(f[i] + r[i]);
    };
    float squares[1] = {0.f};
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N];
      value(col, f);
#pragma unroll
      for (int i = 0; i < N; ++i) squares[0] += f[i] * f[i];
    }
    sum(squares);
    const float rstd = inverse_sqrt(squares[0] / float(a.cols) + a.eps);
    if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = rstd;
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], scale[N];
      value(col, f);
      if (a.h != nullptr) store_floats<N>(static_cast<T*>(a.h) + row * a.cols + col, f);
      load_scale<N>(s, col, aligned, scale);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] *= rstd;
      if (a.round_n) round_all<T>(f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] *= scale[i];
      store_floats<N>(static_cast<Y*>(a.y) + row * a.cols + col, f);
    }
  }
}

template <class T, int kVectors, bool kAdd, int kDepth, bool kFull>
__global__ void __launch_bounds__(kRingThreads, 1)
    rms_backward_ring(const RmsNormBackward a, const Scale s, int lanes) {
  constexpr int N = kPerVector<T>, kTensors = kAdd ? 3 : 2;
  using Rows = Ring<T, kVectors, kTensors, kDepth, kFull>;
  __shared__ typename GroupSum<1>::Memory memory;
  launch_dependents();
  const typename Rows::At p(a.rows, a.cols, lanes);
  typename Rows::Source from[kTensors] = {{a.x, a.x_stride}, {a.dy, a.dy_stride}};
  if constexpr (kAdd) from[2] = {a.dh, a.dh_stride};
  Rows rows(p, from);
  GroupSum<1> sum(memory, lanes, p.group);
  HeldScale<T, kVectors> scale;
  scale.fetch(s, p);
  float dweight[kVectors][N] = {};
  const float share = rcp_approx(float(a.cols));
  const auto rstd_of = [&](int64_t row) { return row < a.rows ? a.rstd[row] : 0.f; };
  float next_rstd = rstd_of(p.first + p.group);
  for (int64_t first = p.first; first < a.rows; first += p.step) {
    const int64_t row = first + p.group;
    const float rstd = next_rstd;
    next_rstd = rstd_of(row + p.step);
    rows.advance();
    Held<T, kVectors> x, dy;
    float dot[1] = {0.f};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], g[N], w[N];
      unpack(x.v[k] = rows.get(0, k), f);
      unpack(dy.v[k] = rows.get(1, k), g);
      scale.get(s, k, w);
#pragma unroll
      for (int i = 0; i < N; ++i) dot[0] += g[i] * w[i] * f[i];
    }
    sum(dot);
    x.forget_numbers();
    dy.forget_numbers();
    scale.forget_numbers();
    const float slope = dot[0] * rstd * rstd * share;  // n * mean(g * n) = x * slope
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], g[N], d[N];
      unpack(x.v[k], f);
      unpack(dy.v[k], g);
      scale.get(s, k, d);
#pragma unroll
      for (int i = 0; i < N; ++i) d[i] = (g[i] * d[i] - f[i] * slope) * rstd;
      if constexpr (kAdd) {
        float add[N];
        unpack(rows.get(2, k), add);
#pragma unroll
        for (int i = 0; i < N; ++i) d[i] += add[i];
      }
      if (p.has(row, k)) store_floats<N>(static_cast<T*>(a.dx) + row * a.cols + p.col(k), d);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] *= rstd;
      if (a.round_n) round_all<T>(f);
#pragma unroll
      for (int i = 0; i < N; ++i) dweight[k][i] += g[i] * f[i];
    }
  }
  write_partial(a.partial, p, dweight);
}

template <class T, class Y, int N>
__global__ void __launch_bounds__(512) rms_backward_two_pass(const RmsNormBackward a, const Scale s) {
  __shared__ typename RowSum<1>::Memory memory;
  RowSum<1> sum(memory, blockDim.x);
  const bool aligned = scale_aligned(s);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const Y* dy = static_cast<const Y*>(a.dy) + row * a.dy_stride;
    const float rstd = a.rstd[row];
    float dot[1] = {0.f};
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], g[N], scale[N];
      unpack(load<N>(x + col), f);
      unpack(load<N>(dy + col), g);
      load_scale<N>(s, col, aligned, scale);
#pragma unroll
      for (int i = 0; i < N; ++i) dot[0] += g[i] * scale[i] * f[i];
    }
    sum(dot);
    const float slope = dot[0] * rstd * rstd / float(a.cols);
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], g[N], scale[N];
      unpack(load<N>(x + col), f);
      unpack(load<N>(dy + col), g);
      load_scale<N>(s, col, aligned, scale);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (g[i] * scale[i] - f[i] * slope) * rstd;
      if (a.dh != nullptr) {
        float add[N];
        unpack(load<N>(static_cast<const T*>(a.dh) + row * a.dh_stride + col), add);
#pragma unroll
        for (int i = 0; i < N; ++i) f[i] += add[i];
      }
      store_floats<N>(static_cast<T*>(a.dx) + row * a.cols + col, f);
    }
  }
}

// One thread a column, one block row a chunk of rows: where backward reads rows again.
template <class T, class Y>
__global__ void rms_weight_two_pass(const RmsNormBackward a) {
  const int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= a.cols) return;
  const int64_t begin = int64_t{blockIdx.y} * a.chunk, wanted = begin + a.chunk,
                end = wanted < a.rows ? wanted : a.rows;
  float total = 0.f;
  for (int64_t row = begin; row < end; ++row) {
    float n = to_float(static_cast<const T*>(a.x)[row * a.x_stride + col]) * a.rstd[row];
    if (a.round_n) n = rounded<T>(n);
    total += to_float(static_cast<const Y*>(a.dy)[row * a.dy_stride + col]) * n;
  }
  a.partial[int64_t{blockIdx.y} * a.cols + col] = total;
}

}  // namespace norms::gpu
