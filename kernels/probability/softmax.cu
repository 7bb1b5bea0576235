// Softmax and sparsemax on a GPU. A row is read again from L1 or L2, where it has just been.
#include "kernels/probability/probability_cuda.h"
#include "kernels/probability/rows.cuh"

namespace probability::cuda {
namespace {

using namespace probability::gpu;

struct Shared {
  RowMax<1>::Memory top;
  RowSum<1>::Memory one;
  RowSum<2>::Memory two;
};

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads) softmax_forward(const Softmax a) {
  __shared__ Shared shared;
  RowMax<1> max_of(shared.top);
  RowSum<1> sum_of(shared.one, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* y = static_cast<T*>(a.out) + row * a.cols;
    Online mine;
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
      mine.add(f);
    });
    float top[1] = {mine.top};
    max_of(top);
    float total[1] = {mine.total * expf(mine.top - finite_or_zero(top[0]))};
    sum_of(total);
    const float share = 1.f / total[0];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
#pragma unroll
      for (int i = 0; i < many.N; ++i) f[i] = expf(f[i] - top[0]) * share;
      store_floats<many.N>(y + c, f);
    });
  }
}

// The threshold as on the CPU; every thread knows the same sums, and so takes as many steps.
template <class T, int N>
__global__ void __launch_bounds__(kMostThreads) sparsemax_forward(const Softmax a) {
  __shared__ Shared shared;
  RowMax<1> max_of(shared.top);
  RowSum<2> sums_of(shared.two, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* y = static_cast<T*>(a.out) + row * a.cols;
    float top[1] = {-INFINITY};
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
#pragma unroll
      for (int i = 0; i < many.N; ++i) top[0] = fmaxf(top[0], f[i]);
    });
    max_of(top);
    float threshold = -1.f, before = INFINITY;
    while (true) {
      float above[2] = {0.f, 0.f};  // their sum and their number
      walk<N>(a.cols, [&](auto many, int64_t c) {
        float f[many.N];
        load_floats<many.N>(x + c, f);
#pragma unroll
        for (int i = 0; i < many.N; ++i) {
          const float v = f[i] - top[0];
          if (v > threshold) above[0] += v, above[1] += 1.f;
        }
      });
      sums_of(above);
      if (!(above[1] < before)) break;
      threshold = (above[0] - 1.f) / above[1];
      before = above[1];
    }
    const float from = top[0] + threshold;
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float f[many.N];
      load_floats<many.N>(x + c, f);
#pragma unroll
      for (int i = 0; i < many.N; ++i) f[i] = f[i] - from < 0.f ? 0.f : f[i] - from;
      store_floats<many.N>(y + c, f);
    });
  }
}

template <class T, int N, bool kSparse>
__global__ void __launch_bounds__(kMostThreads) softmax_backward(const Softmax a) {
  __shared__ Shared shared;
  RowSum<2> sums_of(shared.two, int(blockDim.x));
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* y = static_cast<const T*>(a.x) + row * a.x_stride;
    const T* dy = static_cast<const T*>(a.dy) + row * a.dy_stride;
    T* dx = static_cast<T*>(a.out) + row * a.cols;
    float sums[2] = {0.f, 0.f};  // sparse: of dy over y > 0, and their number; else of dy y
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float p[many.N], g[many.N];
      load_floats<many.N>(y + c, p);
      load_floats<many.N>(dy + c, g);
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        if constexpr (kSparse) {
          if (p[i] > 0.f) sums[0] += g[i], sums[1] += 1.f;
        } else {
          sums[0] += p[i] * g[i];
        }
      }
    });
    sums_of(sums);
    const float level = kSparse ? sums[0] / sums[1] : sums[0];
    walk<N>(a.cols, [&](auto many, int64_t c) {
      float p[many.N], g[many.N];
      load_floats<many.N>(y + c, p);
      load_floats<many.N>(dy + c, g);
#pragma unroll
      for (int i = 0; i < many.N; ++i) {
        if constexpr (kSparse)
          g[i] = p[i] > 0.f ? g[i] - level : 0.f;
        else
          g[i] = p[i] * (g[i] - level);
      }
      store_floats<many.N>(dx + c, g);
    });
  }
}

template <class T, int N>
void launch_softmax(const Softmax& a, Stream stream) {
  const auto kernel = a.dy == nullptr ? (a.sparse ? &sparsemax_forward<T, N> : &softmax_forward<T, N>)
                      : a.sparse      ? &softmax_backward<T, N, true>
                                      : &softmax_backward<T, N, false>;
  launch(kernel, blocks_for(a.rows), threads_for(a.cols, N), stream, a);
}

}  // namespace

void softmax(const Softmax& a, Stream stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const auto at = [&](const void* data, int64_t stride) { return addresses(data, stride, a.dtype, a.rows); };
  const bool whole = whole_vectors(a.rows, at(a.x, a.x_stride), at(a.out, a.cols),
                                   a.dy == nullptr ? uint64_t{0} : at(a.dy, a.dy_stride));
  with_dtype(a.dtype, [&]<typename T>() {
    whole ? launch_softmax<T, kPerVector<T>>(a, stream) : launch_softmax<T, 1>(a, stream);
  });
}

}  // namespace probability::cuda
