// Dynamic tanh on a GPU: a thread keeps its columns' gamma, beta and sums in registers and goes down the rows.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/reduce/column_sums.cuh"
#include "kernels/common/gpu/tile/copy_async.cuh"
#include "kernels/dyt/cuda/dyt.h"

namespace dyt::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kThreads = 256;
constexpr int kForwardBlocks = 4, kBackwardBlocks = 2;  // a multiprocessor
constexpr int kForwardRows = 4;                         // of a thread in flight
constexpr int kRingDepth = 3;  // rows of a thread in backward: two on their way, one being worked on; more are slower

// Where the result is rounded to 16 bits: 1e-5 relative. An odd polynomial where 1 - 2 / (e^2x + 1) would cancel.
template <class T>
__device__ __forceinline__ float tanh_of(float x) {
  if constexpr (sizeof(T) == 4) {
    return tanhf(x);
  } else {
    const float e = exp2_approx(x * 2.88539008f);  // 2 log2(e)
    const float far = 1.f - 2.f * rcp_approx(e + 1.f), s = x * x;
    const float near = x + x * s * (-1.f / 3.f + s * (2.f / 15.f - s * (17.f / 315.f)));
    return fabsf(x) < 0.25f ? near : far;
  }
}
// In forward bfloat16 has the chip's own, to 2^-11 relative where its rounding is 2^-9; backward's 1 - tanh^2 would
// lose more.
template <class T>
__device__ __forceinline__ float forward_tanh(float x) {
#if __CUDA_ARCH__ >= 750
  if constexpr (std::is_same_v<T, BFloat16>) return tanh_approx(x);
#endif
  return tanh_of<T>(x);
}

// Columns and rows of a thread: N columns from col on, rows first, first + step, ...
template <int N>
struct Position {
  int64_t col, first, step;
  int group, lanes;
  bool has;
  __device__ Position(int64_t cols, int lanes) : lanes(lanes) {
    const int lane = int(threadIdx.x) % lanes, groups = int(blockDim.x) / lanes;
    group = int(threadIdx.x) / lanes;
    col = (int64_t{blockIdx.x} * lanes + lane) * N;
    first = int64_t{blockIdx.y} * groups + group;
    step = int64_t{gridDim.y} * groups;
    has = col < cols;
  }
};

template <int N>
__device__ __forceinline__ void load_parameter(const Parameter& p, int64_t col, bool has, float (&f)[N]) {
  if (has && p.data != nullptr) {
    load_any<N>(p.data, p.dtype, col, reinterpret_cast<uintptr_t>(p.data) % kVectorBytes == 0, f);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = 0.f;
  }
}
__device__ __forceinline__ float number(const Parameter& p) {
  float f[1];
  load_any<1>(p.data, p.dtype, 0, false, f);
  return f[0];
}

// The rows of a thread, kRows at a time: all loads of some rows stand before the first use of one.
template <class T, int N>
__global__ void __launch_bounds__(kThreads, kForwardBlocks) dyt_forward(const Forward a, int lanes) {
  const Position<N> p(a.cols, lanes);
  grid_dependency_wait();
  if (!p.has) return;
  const float alpha = number(a.alpha);
  float gamma[N], beta[N];
  load_parameter<N>(a.gamma, p.col, true, gamma);
  load_parameter<N>(a.beta, p.col, true, beta);
  const T* x = static_cast<const T*>(a.x) + p.col;
  T* y = static_cast<T*>(a.y) + p.col;
  for (int64_t first = p.first; first < a.rows; first += kForwardRows * p.step) {
    Pack<T, N> some[kForwardRows];
#pragma unroll
    for (int r = 0; r < kForwardRows; ++r) {
      const int64_t row = first + r * p.step;
      if (row >= a.rows) continue;
      if constexpr (N == 1)
        some[r] = load<1>(x + row * a.x_stride);
      else
        some[r] = load_evict_last<N>(x + row * a.x_stride);
    }
#pragma unroll
    for (int r = 0; r < kForwardRows; ++r) {
      const int64_t row = first + r * p.step;
      if (row >= a.rows) break;
      float v[N];
      unpack(some[r], v);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = forward_tanh<T>(alpha * v[i]) * gamma[i] + beta[i];
      store_floats<N>(y + row * a.cols, v);
    }
  }
}

// What a thread reads of its rows: vectors through a ring of its own in shared memory, which needs no barrier, and
// single elements as they come.
template <class T, int N>
class RowsAhead {
 public:
  __device__ RowsAhead(const Backward& a, const Position<N>& p, uint4* ring) : a_(a), p_(p), ring_(ring + threadIdx.x) {
    x_ = static_cast<const T*>(a.x) + p.col, dy_ = static_cast<const T*>(a.dy) + p.col;
    if constexpr (N > 1) {
#pragma unroll
      for (int d = 0; d + 1 < kRingDepth; ++d) send(p.first + d * p.step, d);
    }
  }
  // x and dy of `row`, which are asked for in order.
  __device__ __forceinline__ void next(int64_t row, float (&x)[N], float (&dy)[N]) {
    if constexpr (N == 1) {
      x[0] = to_float(x_[row * a_.x_stride]), dy[0] = to_float(dy_[row * a_.dy_stride]);
    } else {
      copy_async_wait<kRingDepth - 2>();
      send(row + (kRingDepth - 1) * p_.step, (slot_ + kRingDepth - 1) % kRingDepth);
      get(0, x);
      get(1, dy);
      slot_ = (slot_ + 1) % kRingDepth;
    }
  }

 private:
  __device__ __forceinline__ uint4* place(int slot, int tensor) const {
    return ring_ + (slot * 2 + tensor) * int(blockDim.x);
  }
  __device__ __forceinline__ void send(int64_t row, int slot) {
    if (p_.has && row < a_.rows) {
      copy_async(place(slot, 0), x_ + row * a_.x_stride);
      copy_async(place(slot, 1), dy_ + row * a_.dy_stride);
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void get(int tensor, float (&f)[N]) const {
    const uint4 v = *place(slot_, tensor);
    Pack<T, N> some;
    some.w[0] = v.x, some.w[1] = v.y, some.w[2] = v.z, some.w[3] = v.w;
    unpack(some, f);
  }
  const Backward& a_;
  const Position<N>& p_;
  uint4* ring_;  // [depth][2][threads]
  const T *x_, *dy_;
  int slot_ = 0;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) dyt_backward(const Backward a, int lanes) {
  __shared__ RowSum<1>::Memory memory;
  extern __shared__ uint4 ring[];  // then the sums of a block's rows at once: [2 N][threads]
  RowSum<1> sum_of(memory, int(blockDim.x));
  const Position<N> p(a.cols, lanes);
  grid_dependency_wait();
  launch_dependents();
  RowsAhead<T, N> rows(a, p, ring);
  const float alpha = number(a.alpha);
  float gamma[N], gammas[N] = {}, betas[N] = {}, alphas[1] = {0.f};
  load_parameter<N>(a.gamma, p.col, p.has, gamma);
  T* dx = static_cast<T*>(a.dx) + p.col;
  for (int64_t row = p.first; p.has && row < a.rows; row += p.step) {
    float v[N], g[N];
    rows.next(row, v, g);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float t = tanh_of<T>(alpha * v[i]), s = g[i] * gamma[i] * (1.f - t * t);
      gammas[i] += g[i] * t;
      betas[i] += g[i];
      alphas[0] += v[i] * s;
      v[i] = alpha * s;
    }
    store_floats<N>(dx + row * a.cols, v);
  }
  sum_of(alphas);
  if (threadIdx.x == 0) a.partial_alpha[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = alphas[0];
  const int groups = int(blockDim.x) / lanes;
  if (groups > 1) {
    auto* others = reinterpret_cast<float*>(ring);
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      others[i * int(blockDim.x) + threadIdx.x] = gammas[i];
      others[(N + i) * int(blockDim.x) + threadIdx.x] = betas[i];
    }
    __syncthreads();
    if (p.group > 0) return;
    for (int g = 1; g < groups; ++g) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        gammas[i] += others[i * int(blockDim.x) + g * lanes + threadIdx.x];
        betas[i] += others[(N + i) * int(blockDim.x) + g * lanes + threadIdx.x];
      }
    }
  }
  if (!p.has) return;
  store_floats<N>(a.partial_gamma + int64_t{blockIdx.y} * a.cols + p.col, gammas);
  store_floats<N>(a.partial_beta + int64_t{blockIdx.y} * a.cols + p.col, betas);
}

// The sums of dgamma's and dbeta's columns; the last block adds up dalpha.
template <int kColumns, int N>
__global__ void __launch_bounds__(kSumThreads)
    dyt_sums(const ColumnSums gamma, const ColumnSums beta, const ColumnSums alpha) {
  __shared__ RowSum<1>::Memory memory;
  const int64_t per_tensor = (gamma.cols + kColumns - 1) / kColumns, block = blockIdx.x;
  grid_dependency_wait();
  if (block < per_tensor) return sum_block_columns<kColumns, N>(gamma, block * kColumns);
  if (block < 2 * per_tensor) return sum_block_columns<kColumns, N>(beta, (block - per_tensor) * kColumns);
  float total[1] = {0.f};
  for (int64_t k = threadIdx.x; k < alpha.chunks; k += kSumThreads) total[0] += alpha.partial[k];
  RowSum<1> sum_of(memory, kSumThreads);
  sum_of(total);
  if (threadIdx.x == 0) store_any(alpha.out, alpha.dtype, 0, total[0]);
}

template <class... Wanted, class... Given>
void launch_plan(void (*kernel)(Wanted...), const Plan& p, int64_t bytes, Stream stream, Given&&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(p.strips), unsigned(p.chunks));
  config.blockDim = dim3(unsigned(p.lanes * p.groups));
  config.dynamicSmemBytes = size_t(bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 ? 1 : 0;
  checked(cudaLaunchKernelEx(&config, kernel, Wanted(std::forward<Given>(args))...), "kernel launch");
}

// Rows of x and of what is written begin at whole vectors.
bool whole_vectors(DType dtype, int64_t rows, int64_t cols, const void* a, int64_t a_stride, const void* b) {
  return cols * size_of(dtype) % kVectorBytes == 0 && aligned(a, a_stride, dtype, rows) &&
         aligned(b, cols, dtype, rows);
}
bool whole_vectors(const Backward& a) {
  return whole_vectors(a.dtype, a.rows, a.cols, a.x, a.x_stride, a.dx) && aligned(a.dy, a.dy_stride, a.dtype, a.rows);
}

// In as many strips as `width` threads a row make.
Plan plan(int64_t rows, int64_t cols, int64_t each, int blocks_per_sm, int width) {
  const int64_t places = std::max<int64_t>(1, divide_up(cols, each)), strips = divide_up(places, width);
  int64_t lanes = divide_up(divide_up(places, strips), 32) * 32;
  if (places <= 16)
    for (lanes = 1; lanes < places;) lanes *= 2;
  const int groups = int(kThreads / lanes);
  const int64_t most = std::clamp<int64_t>(int64_t{multiprocessors()} * blocks_per_sm / strips, 1, 65535);
  return {std::clamp<int64_t>(divide_up(rows, groups), 1, most), strips, int(lanes), groups};
}

}  // namespace

// Narrow strips: the sums of a block's groups of threads are added up on the chip, so that fewer of them go to memory
// and back. Wider ones where the number of narrow strips would leave more than a twentieth of the blocks without work.
Plan plan_backward(const Backward& a) {
  constexpr int kNarrowest = 64;
  const int64_t each = whole_vectors(a) ? kVectorBytes / size_of(a.dtype) : 1;
  const int64_t room = int64_t{multiprocessors()} * kBackwardBlocks;
  const auto fills = [&](int width) {
    const int64_t strips = std::max<int64_t>(1, divide_up(divide_up(a.cols, each), width));
    return room / strips * strips * 20 >= room * 19;
  };
  int width = kNarrowest;
  while (width < kThreads && !fills(width)) width *= 2;
  return plan(a.rows, a.cols, each, kBackwardBlocks, width);
}

void forward(const Forward& a, Stream stream) {
  if (a.rows == 0 || a.cols == 0) return;
  const bool whole = whole_vectors(a.dtype, a.rows, a.cols, a.x, a.x_stride, a.y);
  const Plan p = plan(a.rows, a.cols, whole ? kVectorBytes / size_of(a.dtype) : 1, kForwardBlocks, kThreads);
  with_dtype(a.dtype, [&]<typename T>() {
    launch_plan(whole ? &dyt_forward<T, kPerVector<T>> : &dyt_forward<T, 1>, p, 0, stream, a, p.lanes);
  });
}

void backward(const Backward& a, const Plan& p, const Sums& sums, Stream stream) {
  const int64_t bytes = int64_t{kRingDepth} * 2 * kVectorBytes * p.lanes * p.groups;
  with_dtype(a.dtype, [&]<typename T>() {
    launch_plan(whole_vectors(a) ? &dyt_backward<T, kPerVector<T>> : &dyt_backward<T, 1>, p, bytes, stream, a, p.lanes);
  });
  const ColumnSums gamma{a.partial_gamma, p.chunks, a.cols, sums.dgamma, a.gamma.dtype};
  const ColumnSums beta{a.partial_beta, p.chunks, a.cols, sums.dbeta, a.gamma.dtype};
  const ColumnSums alpha{a.partial_alpha, p.chunks * p.strips, 1, sums.dalpha, a.alpha.dtype};
  with_sum_columns(gamma, [&]<int kColumns, int N>() {
    launch_after(&dyt_sums<kColumns, N>, 2 * divide_up(a.cols, kColumns) + 1, kSumThreads, stream, gamma, beta, alpha);
  });
}

}  // namespace dyt::cuda
