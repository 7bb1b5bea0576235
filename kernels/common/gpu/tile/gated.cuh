// y = act(gate) * up over rows, and its backward: what `mlp` and the *_and_mul ops of `activation` share.
#pragma once

#include "kernels/common/gpu/activations.cuh"
#include "kernels/common/gpu/launch.cuh"

namespace kernels::gpu {

struct GatedRows {
  const void *gate, *up, *dy;  // [rows, cols]; dy: backward only
  void *y, *dgate, *dup;       // forward: y; backward: the other two, which may be gate and up themselves, and y where
                               // it is wanted again, which may be dy
  int64_t gate_stride, up_stride, dy_stride, out_stride;
  int64_t rows, cols;
  DType dtype;
};

constexpr int kWalkThreads = 256;

enum class Gated { kForward, kBackward, kBoth };

template <class Act, class T, Gated kWhat, int N>
__device__ __forceinline__ void gated_values(const GatedRows& a, int64_t row, int64_t col, const Pack<T, N>& gate,
                                             const Pack<T, N>& up, const Pack<T, N>& dy) {
  float g[N], u[N];
  unpack(gate, g);
  unpack(up, u);
  const int64_t out = row * a.out_stride + col;
  if constexpr (kWhat != Gated::kForward) {
    float d[N];
    unpack(dy, d);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Both act = Act::template both<kCoarseOf<T>>(g[i]);
      const float y = act.value * u[i];
      g[i] = d[i] * u[i] * act.slope;
      u[i] = d[i] * act.value;
      d[i] = y;
    }
    store_whole(static_cast<T*>(a.dgate) + out, pack<T>(g));
    store_whole(static_cast<T*>(a.dup) + out, pack<T>(u));
    if constexpr (kWhat == Gated::kBoth) store_whole(static_cast<T*>(a.y) + out, pack<T>(d));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = Act::template value<kCoarseOf<T>>(g[i]) * u[i];
    store_whole(static_cast<T*>(a.y) + out, pack<T>(g));
  }
}

template <class Act, class T, Gated kWhat, int N>
__device__ __forceinline__ void gated_at(const GatedRows& a, int64_t row, int64_t col) {
  const T *gate = static_cast<const T*>(a.gate), *up = static_cast<const T*>(a.up), *dy = static_cast<const T*>(a.dy);
  if (col + N <= a.cols) {
    const Pack<T, N> g = load_whole<N>(gate + row * a.gate_stride + col);
    const Pack<T, N> u = load_whole<N>(up + row * a.up_stride + col);
    Pack<T, N> d{};
    if constexpr (kWhat != Gated::kForward) d = load_whole<N>(dy + row * a.dy_stride + col);
    gated_values<Act, T, kWhat, N>(a, row, col, g, u, d);
  } else if constexpr (N == kPerVector<T>) {  // the tail of a single row
    for (int64_t c = col; c < a.cols; ++c) {
      Pack<T, 1> dy_one{};
      if constexpr (kWhat != Gated::kForward) dy_one = load<1>(dy + row * a.dy_stride + c);
      gated_values<Act, T, kWhat, 1>(a, row, c, load<1>(gate + row * a.gate_stride + c),
                                     load<1>(up + row * a.up_stride + c), dy_one);
    }
  }
}

// A vector a thread and no loop: more of either was slower.
template <class Act, class T, Gated kWhat, int N>
__global__ void __launch_bounds__(kWalkThreads)
    gated_rows(const GatedRows a, int64_t per_row, Divider row_of, bool wide) {
  const int64_t row = row_of(blockIdx.x), at = (blockIdx.x - row * per_row) * kWalkThreads + threadIdx.x;
  grid_dependency_wait();
  if constexpr (kWideBuilt && N > 1) {
    if (wide) return gated_at<Act, T, kWhat, 2 * N>(a, row, at * 2 * N);
  }
  gated_at<Act, T, kWhat, N>(a, row, at * N);
}

template <class Act, Gated kWhat>
void launch_gated(const GatedRows& all, Stream stream) {
  if (all.rows == 0 || all.cols == 0) return;
  const auto at = [&](const void* data, int64_t stride) {
    return data == nullptr ? 0 : addresses(data, stride, all.dtype, all.rows);
  };
  const WalkShape shape{.rows = all.rows,
                        .cols = all.cols,
                        .element_size = size_of(all.dtype),
                        .addresses = at(all.gate, all.gate_stride) | at(all.up, all.up_stride) |
                                     at(all.dy, all.dy_stride) | at(all.y, all.out_stride) |
                                     at(all.dgate, all.out_stride) | at(all.dup, all.out_stride)};
  const WalkPlan p = plan_walk(shape, kWalkThreads, widest_access());
  for_launches(p, all.rows, [&](int64_t first, int64_t rows) {
    GatedRows a = all;
    a.rows = rows;
    a.gate = moved(a.gate, first, a.gate_stride, a.dtype);
    a.up = moved(a.up, first, a.up_stride, a.dtype);
    a.dy = moved(a.dy, first, a.dy_stride, a.dtype);
    for (void** out : {&a.y, &a.dgate, &a.dup}) *out = moved(*out, first, a.out_stride, a.dtype);
    with_dtype(a.dtype, [&]<typename T>() {
      const auto run = [&](auto* kernel) {
        launch_after(kernel, p.blocks_per_row * rows, kWalkThreads, stream, a, p.blocks_per_row,
                     Divider(p.blocks_per_row), p.access == kWideBytes);
      };
      run(p.access >= kVectorBytes ? &gated_rows<Act, T, kWhat, kPerVector<T>> : &gated_rows<Act, T, kWhat, 1>);
    });
  });
}

}  // namespace kernels::gpu
