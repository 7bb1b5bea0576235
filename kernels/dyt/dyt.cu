// Dynamic tanh on a GPU: a thread keeps its columns' gamma, beta and sums in registers and goes down a chunk of rows.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/dyt/dyt_cuda.h"

namespace dyt::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kThreads = 128, kBlocksPerSm = 16;

// Rows of x and of what is written begin at whole vectors; strips are as wide either way.
bool whole_vectors(DType dtype, int64_t rows, const void* a, int64_t a_stride, const void* b, int64_t b_stride) {
  return (addresses(a, a_stride, dtype, rows) | addresses(b, b_stride, dtype, rows)) % kVectorBytes == 0;
}
int64_t strip(DType dtype) { return kThreads * kVectorBytes / size_of(dtype); }

// fn(col) for the columns of a strip that are this thread's: N together, or one and then the next kThreads further on.
template <class T, int N, class Fn>
__device__ __forceinline__ void my_columns(int64_t cols, const Fn& fn) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kPerVector<T>;
#pragma unroll 1
  for (int k = 0; k < kPerVector<T> / N; ++k) {
    const int64_t col = first + (int64_t{k} * kThreads + threadIdx.x) * N;
    if (col + N <= cols)
      fn(col, std::integral_constant<int, N>{});
    else
      for (int64_t c = col; c < cols; ++c) fn(c, std::integral_constant<int, 1>{});
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) dyt_forward(const Forward a, int64_t chunk) {
  const float alpha = *a.alpha;
  my_columns<T, N>(a.cols, [&](int64_t col, auto some) {
    constexpr int M = decltype(some)::value;
    float gamma[M], beta[M];
#pragma unroll
    for (int i = 0; i < M; ++i) gamma[i] = a.gamma[col + i], beta[i] = a.beta == nullptr ? 0.f : a.beta[col + i];
    const int64_t last = min((int64_t{blockIdx.y} + 1) * chunk, a.rows);
#pragma unroll 2
    for (int64_t r = int64_t{blockIdx.y} * chunk; r < last; ++r) {
      float v[M];
      load_floats<M>(static_cast<const T*>(a.x) + r * a.x_stride + col, v);
#pragma unroll
      for (int i = 0; i < M; ++i) v[i] = tanhf(alpha * v[i]) * gamma[i] + beta[i];
      store_floats<M>(static_cast<T*>(a.y) + r * a.cols + col, v);
    }
  });
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) dyt_backward(const Backward a) {
  __shared__ RowSum<1>::Memory memory;
  RowSum<1> sum_of(memory, kThreads);
  const float alpha = *a.alpha;
  const int64_t chunk = blockIdx.y, last = min((chunk + 1) * a.chunk, a.rows);
  float alphas[1] = {0.f};
  my_columns<T, N>(a.cols, [&](int64_t col, auto some) {
    constexpr int M = decltype(some)::value;
    float gamma[M], gammas[M] = {}, betas[M] = {};
#pragma unroll
    for (int i = 0; i < M; ++i) gamma[i] = a.gamma[col + i];
#pragma unroll 2
    for (int64_t r = chunk * a.chunk; r < last; ++r) {
      float v[M], g[M];
      load_floats<M>(static_cast<const T*>(a.x) + r * a.x_stride + col, v);
      load_floats<M>(static_cast<const T*>(a.dy) + r * a.dy_stride + col, g);
#pragma unroll
      for (int i = 0; i < M; ++i) {
        const float t = tanhf(alpha * v[i]), s = g[i] * gamma[i] * (1.f - t * t);
        gammas[i] += g[i] * t;
        betas[i] += g[i];
        alphas[0] += v[i] * s;
        v[i] = alpha * s;
      }
      store_floats<M>(static_cast<T*>(a.dx) + r * a.cols + col, v);
    }
#pragma unroll
    for (int i = 0; i < M; ++i) {
      a.partial_gamma[chunk * a.cols + col + i] = gammas[i];
      a.partial_beta[chunk * a.cols + col + i] = betas[i];
    }
  });
  sum_of(alphas);
  if (threadIdx.x == 0) a.partial_alpha[chunk * a.strips + blockIdx.x] = alphas[0];
}

template <class T>
__global__ void __launch_bounds__(kThreads) dyt_column_sum(const ColumnSum a) {
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= a.cols) return;
  float total = 0.f;
#pragma unroll 8
  for (int64_t row = 0; row < a.rows; ++row) total += a.partial[row * a.cols + col];
  static_cast<T*>(a.out)[col] = from_float<T>(total);
}

template <class... Wanted, class... Given>
void launch_chunks(void (*kernel)(Wanted...), const Plan& p, Stream stream, Given&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(p.strips), unsigned(p.chunks));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  checked(cudaLaunchKernelEx(&config, kernel, Wanted(std::forward<Given>(args))...), "kernel launch");
}

}  // namespace

Plan plan(int64_t rows, int64_t cols, DType dtype) {
  const int64_t strips = std::max<int64_t>(1, divide_up(cols, strip(dtype)));
  const int64_t wanted = std::max<int64_t>(1, int64_t{multiprocessors()} * kBlocksPerSm / strips);
  const int64_t chunk = std::max<int64_t>(8, divide_up(rows, std::min<int64_t>(wanted, 65535)));
  return {chunk, std::max<int64_t>(1, divide_up(rows, chunk)), strips};
}

void forward(const Forward& a, Stream stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const Plan p = plan(a.rows, a.cols, a.dtype);
  const bool whole = whole_vectors(a.dtype, a.rows, a.x, a.x_stride, a.y, a.cols);
  with_dtype(a.dtype, [&]<typename T>() {
    launch_chunks(whole ? &dyt_forward<T, kPerVector<T>> : &dyt_forward<T, 1>, p, stream, a, p.chunk);
  });
}

void backward(const Backward& a, Stream stream) {
  const Plan p = plan(a.rows, a.cols, a.dtype);
  const bool whole =
      whole_vectors(a.dtype, a.rows, a.x, a.x_stride, a.dx, a.cols) && aligned(a.dy, a.dy_stride, a.dtype, a.rows);
  with_dtype(a.dtype, [&]<typename T>() {
    launch_chunks(whole ? &dyt_backward<T, kPerVector<T>> : &dyt_backward<T, 1>, p, stream, a);
  });
}

void column_sum(const ColumnSum& a, Stream stream) {
  if (a.cols == 0) return;
  with_dtype(a.dtype,
             [&]<typename T>() { launch(&dyt_column_sum<T>, divide_up(a.cols, kThreads), kThreads, stream, a); });
}

}  // namespace dyt::cuda
