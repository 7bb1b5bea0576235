// LayerNorm on a GPU: as rms_norm.cuh, with a mean, and sums of two kinds in backward.
#pragma once

#include "kernels/norm/cuda/rms_norm.cuh"

namespace norms::gpu {

// A row's mean and squared distances from it, over the threads that hold it; once a block. Distances are taken from a
// number near by, the mean of a warp's first vector, so that one pass is enough: what cancels between squares and the
// square of the sum is at most as many times the result as the warp has vectors.
template <int kMaxLanes>
class RowMoments {
 public:
  static constexpr int kWarps = kMaxLanes / 32;
  struct Memory {
    float4 parts[kWarps];  // columns, mean, squared distances
  };
  __device__ RowMoments(Memory& memory) : memory_(memory) {}

  template <class T, int kVectors, bool kGroups, bool kFull>
  __device__ __forceinline__ float2 operator()(const Held<T, kVectors>& x,
                                               const Position<T, kVectors, kGroups, kFull>& p) {
    constexpr int N = kPerVector<T>;
    const int lanes = kGroups ? p.lanes : 32;  // of the row in this warp
    float f[N], near = 0.f;
    unpack(x.v[0], f);
#pragma unroll
    for (int i = 0; i < N; ++i) near += f[i];
    near = __shfl_sync(kAllLanes, near, 0, lanes) * (1.f / float(N));
    float total[2] = {0.f, 0.f}, squares[2] = {0.f, 0.f};
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (!p.has(k)) continue;
      unpack(x.v[k], f);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float d = f[i] - near;
        total[i % 2] += d;
        squares[i % 2] += d * d;
      }
    }
    const float sum = kGroups ? lanes_sum(total[0] + total[1], lanes) : warp_sum(total[0] + total[1]);
    const float square = kGroups ? lanes_sum(squares[0] + squares[1], lanes) : warp_sum(squares[0] + squares[1]);
    int count = 32 * N * kVectors;  // columns of the warp
    if constexpr (!kFull) {
      count = 0;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int left = p.cols - p.col(k) + (p.lane % lanes) * N;
        count += left < 0 ? 0 : left < lanes * N ? left : lanes * N;
      }
    }
    const float off = count > 0 ? sum * rcp_approx(float(count)) : 0.f, distances = square - sum * off;
    const float4 mine = {float(count), near + off, distances < 0.f ? 0.f : distances, 0.f};
    if (p.lanes <= 32) return {mine.y, mine.z};
    if (threadIdx.x % 32 == 0) memory_.parts[threadIdx.x / 32] = mine;
    __syncthreads();
    return merged(p);
  }

 private:
  template <class P>
  __device__ __forceinline__ float2 merged(const P& p) const {
    const auto* parts = memory_.parts;
    const int warps = p.lanes / 32;
    const auto part = [&](int w) { return w < warps ? parts[w] : make_float4(0.f, 0.f, 0.f, 0.f); };
    const auto from = [](const float4& v, float mean) { return v.z + v.x * (v.y - mean) * (v.y - mean); };
    float total = 0.f, distances = 0.f;
    if constexpr (kWarps <= 4) {
      float4 all[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) all[w] = part(w), total += all[w].x * all[w].y;
      const float mean = total * rcp_approx(float(p.cols));
#pragma unroll
      for (int w = 0; w < kWarps; ++w) distances += from(all[w], mean);
      return {mean, distances};
    } else {  // a warp's lane each
      const float4 one = part(int(threadIdx.x) % kWarps);
      const float mean = lanes_sum(one.x * one.y, kWarps) * rcp_approx(float(p.cols));
      return {mean, lanes_sum(from(one, mean), kWarps)};
    }
  }

  Memory& memory_;
};

// Blocks that registers are shared out among: by the most threads of a row. From sm_100 on the same code needs more of
// them, and would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kNarrowBlocks = 6;
#else
constexpr int kNarrowBlocks = 7;
#endif
constexpr int layer_blocks(int vectors, int lanes) {
  return vectors < 4 ? 8 : lanes <= 128 ? kNarrowBlocks : 1024 / lanes;
}

// A block for each row, or for some rows where each is a part of a warp. No loop: it would cost registers.
template <class T, int kVectors, int kMaxLanes, bool kFull>
__global__ void __launch_bounds__(kMaxLanes, layer_blocks(kVectors, kMaxLanes))
    layer_forward_held(const LayerNormForward a, const Scale s, const Scale b, int64_t rows, int lanes) {
  constexpr int N = kPerVector<T>;
  constexpr bool kEarly = kMaxLanes <= 128;  // registers are left to fetch some weights before the barrier
  __shared__ typename RowMoments<kMaxLanes>::Memory memory;
  RowMoments<kMaxLanes> moments(memory);
  const Position<T, kVectors, kVectors == 1, kFull> p(rows, a.cols, lanes);
  const int64_t row = p.first + p.group;
  grid_dependency_wait();
  Held<T, kVectors> x;
  x.fetch(a.x, a.x_stride, row, p);
  HeldScale<T, kVectors> scale, bias{};
  const auto fetch_weights = [&](int k) {
    scale.fetch(s, p, k);
    if (b.weight != nullptr) bias.fetch(b, p, k);
  };
  if constexpr (kEarly) {
#pragma unroll
    for (int k = 0; k + 2 < kVectors; ++k) fetch_weights(k);
  }
  const float2 both = moments(x, p);
  x.forget_numbers();
  const float mean = both.x, rstd = inverse_sqrt(both.y * rcp_approx(float(a.cols)) + a.eps);
  if (a.mean != nullptr && p.lane == 0 && row < rows) a.mean[row] = mean, a.rstd[row] = rstd;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!kEarly || k + 2 >= kVectors) fetch_weights(k);
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 4); ++i)  // a word at a time: registers
      x.v[k].w[i] = map_word<T>(x.v[k].w[i], scale.v[k].w[i], bias.v[k].w[i],
                                [&](float f, float w, float add) { return (f - mean) * rstd * w + add; });
    if (p.has(row, k)) store(static_cast<T*>(a.y) + row * a.cols + p.col(k), x.v[k]);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(512)
    layer_forward_two_pass(const LayerNormForward a, const Scale s, const Scale b, int64_t rows) {
  __shared__ typename RowSum<1>::Memory memory;
  RowSum<1> sum(memory, blockDim.x);
  const bool aligned = scale_aligned(s), bias_aligned = scale_aligned(b);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    float total[1] = {0.f}, squares[1] = {0.f};
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N];
      unpack(load<N>(x + col), f);
#pragma unroll
      for (int i = 0; i < N; ++i) total[0] += f[i];
    }
    sum(total);
    const float mean = total[0] / float(a.cols);
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N];
      unpack(load<N>(x + col), f);
#pragma unroll
      for (int i = 0; i < N; ++i) squares[0] += (f[i] - mean) * (f[i] - mean);
    }
    sum(squares);
    const float rstd = inverse_sqrt(squares[0] / float(a.cols) + a.eps);
    if (a.mean != nullptr && threadIdx.x == 0) a.mean[row] = mean, a.rstd[row] = rstd;
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], scale[N], bias[N] = {};
      unpack(load<N>(x + col), f);
      load_scale<N>(s, col, aligned, scale);
      if (b.weight != nullptr) load_scale<N>(b, col, bias_aligned, bias);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (f[i] - mean) * rstd * scale[i] + bias[i];
      store_floats<N>(static_cast<T*>(a.y) + row * a.cols + col, f);
    }
  }
}

template <class T, int kVectors, int kDepth, bool kFull>
__global__ void __launch_bounds__(kRingThreads, 1)
    layer_backward_ring(const LayerNormBackward a, const Scale s, int lanes) {
  constexpr int N = kPerVector<T>;
  using Rows = Ring<T, kVectors, 2, kDepth, kFull>;
  __shared__ typename GroupSum<2>::Memory memory;
  launch_dependents();
  const typename Rows::At p(a.rows, a.cols, lanes);
  const typename Rows::Source from[2] = {{a.x, a.x_stride}, {a.dy, a.dy_stride}};
  Rows rows(p, from);
  GroupSum<2> sum(memory, lanes, p.group);
  HeldScale<T, kVectors> scale;
  scale.fetch(s, p);
  float dweight[kVectors][N] = {}, dbias[kVectors][N] = {};
  const float share = rcp_approx(float(a.cols));
  const auto of = [&](const float* statistic, int64_t row) { return row < a.rows ? statistic[row] : 0.f; };
  float next_rstd = of(a.rstd, p.first + p.group), next_mean = of(a.mean, p.first + p.group);
  for (int64_t first = p.first; first < a.rows; first += p.step) {
    const int64_t row = first + p.group;
    const float rstd = next_rstd, mean = next_mean;
    next_rstd = of(a.rstd, row + p.step), next_mean = of(a.mean, row + p.step);
    rows.advance();
    Held<T, kVectors> x, dy;
    float sums[2] = {0.f, 0.f};  // of g, of g (x - mean); dy is zero where there is no column
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], g[N], w[N];
      unpack(x.v[k] = rows.get(0, k), f);
      unpack(dy.v[k] = rows.get(1, k), g);
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
    // dx = (g w - mean(g w) - n mean(g w n)) rstd, with n = (x - mean) rstd
    const float level = sums[0] * share * rstd, slope = sums[1] * share * rstd * rstd * rstd;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      float f[N], g[N], d[N];
      unpack(x.v[k], f);
      unpack(dy.v[k], g);
      unpack(scale.v[k], d);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float off = f[i] - mean, scaled = g[i] * rstd;
        d[i] = scaled * d[i] - level - off * slope;
        dweight[k][i] += scaled * off;
        dbias[k][i] += g[i];
      }
      if (p.has(row, k)) store_floats<N>(static_cast<T*>(a.dx) + row * a.cols + p.col(k), d);
    }
  }
  write_partial(a.partial_weight, p, dweight);
  write_partial(a.partial_bias, p, dbias);
}

template <class T, int N>
__global__ void __launch_bounds__(512) layer_backward_two_pass(const LayerNormBackward a, const Scale s) {
  __shared__ typename RowSum<2>::Memory memory;
  RowSum<2> sum(memory, blockDim.x);
  const bool aligned = scale_aligned(s);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T *x = static_cast<const T*>(a.x) + row * a.x_stride, *dy = static_cast<const T*>(a.dy) + row * a.dy_stride;
    const float rstd = a.rstd[row], mean = a.mean[row];
    float sums[2] = {0.f, 0.f};
    for (int64_t col = int64_t{threadIdx.x} * N; col < a.cols; col += int64_t{blockDim.x} * N) {
      float f[N], g[N], scale[N];
      unpack(load<N>(x + col), f);
      unpack(load<N>(dy + col), g);
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
      unpack(load<N>(x + col), f);
      unpack(load<N>(dy + col), g);
      load_scale<N>(s, col, aligned, scale);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (g[i] * scale[i] - level - (f[i] - mean) * rstd * slope) * rstd;
      store_floats<N>(static_cast<T*>(a.dx) + row * a.cols + col, f);
    }
  }
}

template <class T>
__global__ void layer_weight_two_pass(const LayerNormBackward a) {
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
