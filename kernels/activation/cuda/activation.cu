// Activations on a GPU.
#include "kernels/activation/cuda/activation.h"
#include "kernels/common/gpu/tile/gated.cuh"

namespace activation::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

template <class Act, class T, bool kBackward, int N>
__device__ __forceinline__ void values(T* out, const Pack<T, N>& x, const Pack<T, N>& dy) {
  float f[N];
  unpack(x, f);
  if constexpr (kBackward) {
    float d[N];
    unpack(dy, d);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = d[i] * Act::template both<kCoarseOf<T>>(f[i]).slope;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = Act::template value<kCoarseOf<T>>(f[i]);
  }
  store_whole(out, pack<T>(f));
}

template <class Act, class T, bool kBackward, int N>
__device__ __forceinline__ void unary_at(const Unary& a, int64_t row, int64_t col) {
  T* out = static_cast<T*>(a.out) + row * a.cols + col;
  const T* x = static_cast<const T*>(a.x) + row * a.x_stride + col;
  const T* dy = kBackward ? static_cast<const T*>(a.dy) + row * a.dy_stride + col : nullptr;
  if (col + N <= a.cols) {
    const Pack<T, N> v = load_whole<N>(x);
    Pack<T, N> d{};
    if constexpr (kBackward) d = load_whole<N>(dy);
    values<Act, T, kBackward, N>(out, v, d);
  } else if constexpr (N == kPerVector<T>) {  // the tail of a single row
    for (int64_t c = 0; col + c < a.cols; ++c) {
      Pack<T, 1> dy_one{};
      if constexpr (kBackward) dy_one = load<1>(dy + c);
      values<Act, T, kBackward, 1>(out + c, load<1>(x + c), dy_one);
    }
  }
}

template <class Act, class T, bool kBackward, int N>
__global__ void __launch_bounds__(kWalkThreads) unary_rows(const Unary a, int64_t per_row, Divider row_of, bool wide) {
  const int64_t row = row_of(blockIdx.x), at = (blockIdx.x - row * per_row) * kWalkThreads + threadIdx.x;
  grid_dependency_wait();
  if constexpr (kWideBuilt && N > 1) {
    if (wide) return unary_at<Act, T, kBackward, 2 * N>(a, row, at * 2 * N);
  }
  unary_at<Act, T, kBackward, N>(a, row, at * N);
}

template <class Fn>
void with_function(Function function, Fn fn) {
#define ACTIVATION_CASE(Name) \
  case Function::k##Name:     \
    return fn.template operator()<Name>();
  switch (function) { ACTIVATION_FUNCTIONS(ACTIVATION_CASE); }
#undef ACTIVATION_CASE
}

}  // namespace

void unary(const Unary& all, int64_t all_rows, Stream stream) {
  if (all_rows == 0 || all.cols == 0) return;
  const bool backward = all.dy != nullptr;
  const WalkShape shape{.rows = all_rows,
                        .cols = all.cols,
                        .element_size = size_of(all.dtype),
                        .addresses = addresses(all.x, all.x_stride, all.dtype, all_rows) |
                                     addresses(all.out, all.cols, all.dtype, all_rows) |
                                     (backward ? addresses(all.dy, all.dy_stride, all.dtype, all_rows) : 0)};
  const WalkPlan p = plan_walk(shape, kWalkThreads, widest_access());
  for_launches(p, all_rows, [&](int64_t first, int64_t rows) {
    Unary a = all;
    a.x = moved(a.x, first, a.x_stride, a.dtype);
    a.dy = moved(a.dy, first, a.dy_stride, a.dtype);
    a.out = moved(a.out, first, a.cols, a.dtype);
    with_function(a.function, [&]<class Act>() {
      with_dtype(a.dtype, [&]<typename T>() {
        const auto run = [&](auto* kernel) {
          launch_after(kernel, p.blocks_per_row * rows, kWalkThreads, stream, a, p.blocks_per_row,
                       Divider(p.blocks_per_row), p.access == kWideBytes);
        };
        if (p.access >= kVectorBytes)
          run(backward ? &unary_rows<Act, T, true, kPerVector<T>> : &unary_rows<Act, T, false, kPerVector<T>>);
        else
          run(backward ? &unary_rows<Act, T, true, 1> : &unary_rows<Act, T, false, 1>);
      });
    });
  });
}

void and_mul(const AndMul& a, int64_t rows, Stream stream) {
  const bool backward = a.dy != nullptr;
  const int64_t half = a.cols * size_of(a.dtype);
  const auto up = [&](const void* p) { return static_cast<const char*>(p) + half; };
  const GatedRows gated{.gate = a.x,
                        .up = up(a.x),
                        .dy = a.dy,
                        .y = backward ? nullptr : a.out,
                        .dgate = backward ? a.out : nullptr,
                        .dup = backward ? const_cast<char*>(up(a.out)) : nullptr,
                        .gate_stride = a.x_stride,
                        .up_stride = a.x_stride,
                        .dy_stride = a.dy_stride,
                        .out_stride = backward ? 2 * a.cols : a.cols,
                        .rows = rows,
                        .cols = a.cols,
                        .dtype = a.dtype};
  with_function(a.function, [&]<class Act>() {
    backward ? launch_gated<Act, Gated::kBackward>(gated, stream) : launch_gated<Act, Gated::kForward>(gated, stream);
  });
}

}  // namespace activation::cuda
