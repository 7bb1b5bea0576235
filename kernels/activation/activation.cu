// Activations on a GPU.
#include "kernels/activation/activation_cuda.h"
#include "kernels/common/gated.cuh"

namespace activation::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

// Vectors a thread has in flight, and threads a block: the best of what was measured.
constexpr int kThreads = 128, kBlocks = 10;
template <bool kBackward>
constexpr int kEachOf = kBackward ? 2 : 4;

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
  store_floats<N>(out, f);
}

// kFlat: one row, whose blocks the grid holds all.
template <class Act, class T, bool kBackward, int N, bool kFlat>
__global__ void __launch_bounds__(kThreads, kBlocks)
    unary_rows(const Unary a, int64_t rows, int64_t per_row, int64_t blocks) {
  constexpr int kEach = kEachOf<kBackward>;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t row = kFlat ? 0 : row_of(block, per_row, rows);
    const int64_t begin = (block - row * per_row) * (int64_t{kThreads} * kEach * N) + int64_t{threadIdx.x} * N;
    T* out = static_cast<T*>(a.out) + row * a.cols;
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* dy = kBackward ? static_cast<const T*>(a.dy) + row * a.dy_stride : nullptr;
    Pack<T, N> v[kEach], d[kEach];
    if (begin + int64_t{(kEach - 1) * kThreads + 1} * N <= a.cols) {  // all of the thread's: nothing to ask on the way
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        v[k] = load<N>(x + begin + k * kThreads * N);
        if constexpr (kBackward) d[k] = load<N>(dy + begin + k * kThreads * N);
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) values<Act, T, kBackward, N>(out + begin + k * kThreads * N, v[k], d[k]);
    } else {
      for (int k = 0; k < kEach; ++k) {
        const int64_t col = begin + int64_t{k} * kThreads * N;
        for (int64_t c = col; c < col + N && c < a.cols; ++c) {
          Pack<T, 1> dy_one{};
          if constexpr (kBackward) dy_one = load<1>(dy + c);
          values<Act, T, kBackward, 1>(out + c, load<1>(x + c), dy_one);
        }
      }
    }
    if constexpr (kFlat) return;
  }
}

template <class Fn>
void with_function(Function function, Fn fn) {
  switch (function) {
    case Function::kSilu:
      return fn.template operator()<Silu>();
    case Function::kGelu:
      return fn.template operator()<Gelu>();
    case Function::kGeluTanh:
      return fn.template operator()<GeluTanh>();
    case Function::kGeluQuick:
      return fn.template operator()<GeluQuick>();
  }
}

}  // namespace

void unary(const Unary& a, int64_t rows, Stream stream) {
  if (rows == 0 || a.cols == 0) return;
  const bool backward = a.dy != nullptr;
  const bool all = aligned(a.x, a.x_stride, a.dtype, rows) && aligned(a.out, a.cols, a.dtype, rows) &&
                   (!backward || aligned(a.dy, a.dy_stride, a.dtype, rows));
  const WalkPlan p = plan_walk({.rows = rows, .cols = a.cols, .element_size = size_of(a.dtype), .aligned = all},
                               kThreads, backward ? kEachOf<true> : kEachOf<false>);
  const int64_t work = p.blocks_per_row * rows;
  with_function(a.function, [&]<class Act>() {
    with_dtype(a.dtype, [&]<typename T>() {
      const auto run = [&](auto* kernel) {
        launch(kernel, p.blocks, kThreads, stream, a, rows, p.blocks_per_row, work);
      };
      const bool flat = rows == 1 && work == p.blocks;
      if (p.vector_access && flat)
        run(backward ? &unary_rows<Act, T, true, kPerVector<T>, true>
                     : &unary_rows<Act, T, false, kPerVector<T>, true>);
      else if (p.vector_access)
        run(backward ? &unary_rows<Act, T, true, kPerVector<T>, false>
                     : &unary_rows<Act, T, false, kPerVector<T>, false>);
      else
        run(backward ? &unary_rows<Act, T, true, 1, false> : &unary_rows<Act, T, false, 1, false>);
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
  with_function(a.function, [&]<class Act>() { launch_gated<Act>(gated, backward, stream); });
}

}  // namespace activation::cuda
