// y = act(gate) * up over rows, and its backward: what `mlp` and the *_and_mul ops of `activation` share.
#pragma once

#include "kernels/common/activations.cuh"
#include "kernels/common/launch.cuh"

namespace kernels::gpu {

struct GatedRows {
  const void *gate, *up, *dy;  // [rows, cols]; dy: backward only
  void *y, *dgate, *dup;       // forward: y; backward: the other two
  int64_t gate_stride, up_stride, dy_stride, out_stride;
  int64_t rows, cols;
  DType dtype;
};

constexpr int kWalkThreads = 256;
constexpr int kGatedEach = 1;  // vectors of each tensor a thread has in flight: more were slower

template <class Act, class T, bool kBackward, int N>
__device__ __forceinline__ void gated_values(const GatedRows& a, int64_t row, int64_t col, const Pack<T, N>& gate,
                                             const Pack<T, N>& up, const Pack<T, N>& dy) {
  float g[N], u[N];
  unpack(gate, g);
  unpack(up, u);
  const int64_t out = row * a.out_stride + col;
  if constexpr (kBackward) {
    float d[N];
    unpack(dy, d);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Both act = Act::template both<kCoarseOf<T>>(g[i]);
      g[i] = d[i] * u[i] * act.slope;
      u[i] = d[i] * act.value;
    }
    store_floats<N>(static_cast<T*>(a.dgate) + out, g);
    store_floats<N>(static_cast<T*>(a.dup) + out, u);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = Act::template value<kCoarseOf<T>>(g[i]) * u[i];
    store_floats<N>(static_cast<T*>(a.y) + out, g);
  }
}

template <class Act, class T, bool kBackward, int N>
__global__ void __launch_bounds__(kWalkThreads) gated_rows(const GatedRows a, int64_t per_row, int64_t blocks) {
  const T *gate = static_cast<const T*>(a.gate), *up = static_cast<const T*>(a.up), *dy = static_cast<const T*>(a.dy);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t row = row_of(block, per_row, a.rows);
    const int64_t begin = (block - row * per_row) * (int64_t{kWalkThreads} * kGatedEach * N) + int64_t{threadIdx.x} * N;
    Pack<T, N> g[kGatedEach], u[kGatedEach], d[kGatedEach];
#pragma unroll
    for (int k = 0; k < kGatedEach; ++k) {
      const int64_t col = begin + int64_t{k} * kWalkThreads * N;
      if (col + N > a.cols) continue;
      g[k] = load<N>(gate + row * a.gate_stride + col);
      u[k] = load<N>(up + row * a.up_stride + col);
      if constexpr (kBackward) d[k] = load<N>(dy + row * a.dy_stride + col);
    }
#pragma unroll
    for (int k = 0; k < kGatedEach; ++k) {
      const int64_t col = begin + int64_t{k} * kWalkThreads * N;
      if (col + N <= a.cols) {
        gated_values<Act, T, kBackward, N>(a, row, col, g[k], u[k], d[k]);
      } else if constexpr (N > 1) {  // the tail of a single row
        for (int64_t c = col; c < a.cols; ++c) {
          Pack<T, 1> dy_one{};
          if constexpr (kBackward) dy_one = load<1>(dy + row * a.dy_stride + c);
          gated_values<Act, T, kBackward, 1>(a, row, c, load<1>(gate + row * a.gate_stride + c),
                                             load<1>(up + row * a.up_stride + c), dy_one);
        }
      }
    }
  }
}

template <class Act>
void launch_gated(const GatedRows& a, bool backward, Stream stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const auto fits = [&](const void* data, int64_t stride) {
    return data == nullptr || aligned(data, stride, a.dtype, a.rows);
  };
  const bool all = fits(a.gate, a.gate_stride) && fits(a.up, a.up_stride) && fits(a.dy, a.dy_stride) &&
                   fits(a.y, a.out_stride) && fits(a.dgate, a.out_stride) && fits(a.dup, a.out_stride);
  const WalkPlan p = plan_walk({.rows = a.rows, .cols = a.cols, .element_size = size_of(a.dtype), .aligned = all},
                               kWalkThreads, kGatedEach);
  const int64_t work = p.blocks_per_row * a.rows;
  with_dtype(a.dtype, [&]<typename T>() {
    if (p.vector_access && backward)
      launch(&gated_rows<Act, T, true, kPerVector<T>>, p.blocks, kWalkThreads, stream, a, p.blocks_per_row, work);
    else if (p.vector_access)
      launch(&gated_rows<Act, T, false, kPerVector<T>>, p.blocks, kWalkThreads, stream, a, p.blocks_per_row, work);
    else if (backward)
      launch(&gated_rows<Act, T, true, 1>, p.blocks, kWalkThreads, stream, a, p.blocks_per_row, work);
    else
      launch(&gated_rows<Act, T, false, 1>, p.blocks, kWalkThreads, stream, a, p.blocks_per_row, work);
  });
}

}  // namespace kernels::gpu
