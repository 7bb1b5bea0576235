// LayerNorm on a GPU: as rms_norm.cuh, with a mean, and sums of two kinds in backward.
#pragma once

#include "kernels/norm/rms_norm.cuh"

namespace norms::gpu {

template <class T, int kVectors>
__global__ void __launch_bounds__(forward_lanes(kVectors), kVectors == 2   ? 7
                                                           : kVectors == 1 ? 6
                                                                           : 1)
    layer_forward_held(const LayerNormForward a, const Scale s, const Scale b, int64_t rows, int lanes) {
  constexpr int N = kPerVector<T>;
  __shared__ typename RowMoments::Memory memory;
  RowMoments moments(memory, lanes);
  const Place<T, kVectors> p(rows, a.cols, lanes);
  for (int64_t first = p.first; first < rows; first += p.step) {
    const int64_t row = first + p.group;
    Held<T, kVectors> x;
    x.fetch(a.x, a.x_stride, row, p);
    float total = 0.f, count = 0.f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (p.has(k)) count += float(N);
      float f[N];
      unpack(x.v[k], f);
#pragma unroll
      for (int i = 0; i < N; ++i) total += f[i];
    }
    const float2 both = moments(total, count, [&](float mean) {
      float squares = 0.f;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (!p.has(k)) continue;
        float f[N];
        unpack(x.v[k], f);
#pragma unroll
        for (int i = 0; i < N; ++i) squares += (f[i] - mean) * (f[i] - mean);
      }
      return squares;
    });
    x.forget_numbers();
    HeldScale<T, kVectors> scale, bias{};  // now: registers are dearer than the wait
    scale.fetch(s, p);
    if (b.weight != nullptr) bias.fetch(b, p);
    const float mean = both.x, rstd = inverse_sqrt(both.y / float(a.cols) + a.eps);
    if (a.mean != nullptr && p.lane == 0 && row < rows) a.mean[row] = mean, a.rstd[row] = rstd;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], w[N], add[N];
      unpack(x.v[k], f);
      unpack(scale.v[k], w);
      unpack(bias.v[k], add);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (f[i] - mean) * rstd * w[i] + add[i];
      if (p.has(row, k)) store_floats<N>(static_cast<T*>(a.y) + row * a.cols + p.col(k), f);
    }
  }
}

template <class T, int N>
__global__ void __launch_bounds__(512)
    layer_forward_again(const LayerNormForward a, const Scale s, const Scale b, int64_t rows) {
  __shared__ typename RowSum<1>::Memory memory;
  RowSum<1> sum(memory, blockDim.x);
  const bool aligned = scale_aligned(s), bias_aligned = scale_aligned(b);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    float total[1] = {0.f}, squares[1] = {0.f};
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N];
      unpack(load_shared<N>(x + col), f);
#pragma unroll
      for (int i = 0; i < N; ++i) total[0] += f[i];
    }
    sum(total);
    const float mean = total[0] / float(a.cols);
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N];
      unpack(load_shared<N>(x + col), f);
#pragma unroll
      for (int i = 0; i < N; ++i) squares[0] += (f[i] - mean) * (f[i] - mean);
    }
    sum(squares);
    const float rstd = inverse_sqrt(squares[0] / float(a.cols) + a.eps);
    if (a.mean != nullptr && threadIdx.x == 0) a.mean[row] = mean, a.rstd[row] = rstd;
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], scale[N], bias[N] = {};
      unpack(load_shared<N>(x + col), f);
      load_scale<N>(s, col, aligned, scale);
      if (b.weight != nullptr) load_scale<N>(b, col, bias_aligned, bias);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (f[i] - mean) * rstd * scale[i] + bias[i];
      store_floats<N>(static_cast<T*>(a.y) + row * a.cols + col, f);
    }
  }
}

template <class T, int kVectors, int kLanes, int kBlocks>
__global__ void __launch_bounds__(kLanes, kBlocks)
    layer_backward_held(const LayerNormBackward a, const Scale s, int lanes) {
  constexpr int N = kPerVector<T>;
  __shared__ typename RowSum<2>::Memory memory;
  next_launch_may_begin();
  RowSum<2> sum(memory, lanes);
  const Place<T, kVectors> p(a.rows, a.cols, lanes);
  Held<T, kVectors> x, dy, next_x, next_dy;
  x.fetch_next(a.x, a.x_stride, p.first + p.group, p);
  dy.fetch_next(a.dy, a.dy_stride, p.first + p.group, p);
  HeldScale<T, kVectors> scale;
  scale.fetch(s, p);
  float dweight[kVectors][N] = {}, dbias[kVectors][N] = {};
  for (int64_t first = p.first; first < a.rows; first += p.step) {
    const int64_t row = first + p.group;
    const float rstd = row < a.rows ? a.rstd[row] : 0.f, mean = row < a.rows ? a.mean[row] : 0.f;
    next_x.fetch_next(a.x, a.x_stride, row + p.step, p);
    next_dy.fetch_next(a.dy, a.dy_stride, row + p.step, p);
    float sums[2] = {0.f, 0.f};  // of g, of g (x - mean); dy is zero where there is no column
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], g[N], w[N];
      unpack(x.v[k], f);
      unpack(dy.v[k], g);
      unpack(scale.v[k], w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float scaled = g[i] * w[i];
        sums[0] += scaled;
        sums[1] += scaled * (f[i] - mean);
      }
    }
    sum(sums);
    x.forget_numbers();
    dy.forget_numbers();
    scale.forget_numbers();
    const float level = sums[0] / float(a.cols), slope = sums[1] * rstd / float(a.cols);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], g[N], d[N];
      unpack(x.v[k], f);
      unpack(dy.v[k], g);
      unpack(scale.v[k], d);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float n = (f[i] - mean) * rstd;
        d[i] = (g[i] * d[i] - level - n * slope) * rstd;
        dweight[k][i] += g[i] * n;
        dbias[k][i] += g[i];
      }
      if (p.has(row, k)) store_floats<N>(static_cast<T*>(a.dx) + row * a.cols + p.col(k), d);
    }
    x = next_x;
    dy = next_dy;
  }
  write_partial(a.partial_weight, p, dweight);
  write_partial(a.partial_bias, p, dbias);
}

template <class T, int N>
__global__ void __launch_bounds__(512) layer_backward_again(const LayerNormBackward a, const Scale s) {
  __shared__ typename RowSum<2>::Memory memory;
  RowSum<2> sum(memory, blockDim.x);
  const bool aligned = scale_aligned(s);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T *x = static_cast<const T*>(a.x) + row * a.x_stride, *dy = static_cast<const T*>(a.dy) + row * a.dy_stride;
    const float rstd = a.rstd[row], mean = a.mean[row];
    float sums[2] = {0.f, 0.f};
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], g[N], scale[N];
      unpack(load_shared<N>(x + col), f);
      unpack(load_shared<N>(dy + col), g);
      load_scale<N>(s, col, aligned, scale);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sums[0] += g[i] * scale[i];
        sums[1] += g[i] * scale[i] * (f[i] - mean);
      }
    }
    sum(sums);
    const float level = sums[0] / float(a.cols), slope = sums[1] * rstd / float(a.cols);
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], g[N], scale[N];
      unpack(load_shared<N>(x + col), f);
      unpack(load_shared<N>(dy + col), g);
      load_scale<N>(s, col, aligned, scale);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (g[i] * scale[i] - level - (f[i] - mean) * rstd * slope) * rstd;
      store_floats<N>(static_cast<T*>(a.dx) + row * a.cols + col, f);
    }
  }
}

template <class T>
__global__ void layer_weight_again(const LayerNormBackward a) {
  const int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= a.cols) return;
  const int64_t begin = int64_t{blockIdx.y} * a.chunk, wanted = begin + a.chunk,
                end = wanted < a.rows ? wanted : a.rows;
  float weight = 0.f, bias = 0.f;
  for (int64_t row = begin; row < end; ++row) {
    const float g = to_float(static_cast<const T*>(a.dy)[row * a.dy_stride + col]);
    weight += g * ((to_float(static_cast<const T*>(a.x)[row * a.x_stride + col]) - a.mean[row]) * a.rstd[row]);
    bias += g;
  }
  a.partial_weight[int64_t{blockIdx.y} * a.cols + col] = weight;
  a.partial_bias[int64_t{blockIdx.y} * a.cols + col] = bias;
}

}  // namespace norms::gpu
