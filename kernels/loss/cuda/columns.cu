// Cross-entropy of logits that lie transposed, [vocab, rows]: a thread has a vector of rows and walks through a share
// of the vocabulary. Partial sums, then losses, then gradients in place: three launches, the logits read twice.
#include <algorithm>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/loss/cuda/formulas.cuh"
#include "kernels/loss/cuda/loss.h"

namespace loss::cuda {
namespace {

using namespace loss::gpu;

constexpr int kWarps = 8, kThreads = 32 * kWarps, kTogether = 4;  // vectors a thread has in flight
constexpr int kFinishThreads = 128;

// Rows of logits beside each other that a block takes, and its share of the vocabulary.
template <class T>
constexpr int kRows = 32 * kPerVector<T>;
struct Share {
  int64_t begin, end;
};
__device__ __forceinline__ Share share_of(int64_t vocab, int64_t each) {
  const int64_t begin = int64_t{blockIdx.y} * each, end = begin + each;
  return {begin, end < vocab ? end : vocab};
}

template <class T>
__device__ __forceinline__ float target_logit(const LossRows& a, int64_t row) {
  const int64_t t = a.target[row];
  return is_word(a, t) ? to_float(static_cast<const T*>(a.logits)[t * a.logits_stride + row]) : NAN;
}

// parts: [shares of the vocabulary, 3, rows]: the largest, the total beside it, the sum.
template <class Cap, class T>
__global__ void __launch_bounds__(kThreads, 2) column_sums(const LossRows a, int64_t each, float* parts) {
  constexpr int N = kPerVector<T>;
  constexpr bool kCoarse = kCoarseOf<T>;
  __shared__ float memory[3][kWarps][N][32];  // of Online
  const Cap cap{a.softcap};
  const bool smoothed = a.label_smoothing != 0.f;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const Share share = share_of(a.vocab, each);
  const int64_t row = int64_t{blockIdx.x} * kRows<T> + lane * N;
  const T* z = static_cast<const T*>(a.logits) + row;
  Online mine[N];
  float pivot[N] = {};
  if (smoothed) {
#pragma unroll
    for (int i = 0; i < N; ++i) pivot[i] = pivot_of(cap, target_logit<T>(a, row + i));
  }
  const auto take = [&]<int kCount>(const Pack<T, N>(&p)[kCount]) {
    float f[kCount][N];
#pragma unroll
    for (int k = 0; k < kCount; ++k) unpack(p[k], f[k]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float u[kCount], highest = -INFINITY;
#pragma unroll
      for (int k = 0; k < kCount; ++k) highest = fmaxf(highest, u[k] = cap.u(f[k][i]));
      mine[i].template raise<kCoarse>(highest);
      mine[i].template add<kCoarse>(u, smoothed, pivot[i]);
    }
  };
  int64_t v = share.begin + warp;
  for (; v + (kTogether - 1) * kWarps < share.end; v += kTogether * kWarps) {
    Pack<T, N> p[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) p[k] = load<N>(z + (v + k * kWarps) * a.logits_stride);
    take(p);
  }
  for (; v < share.end; v += kWarps) {
    const Pack<T, N> p[1] = {load<N>(z + v * a.logits_stride)};
    take(p);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    memory[0][warp][i][lane] = mine[i].max;
    memory[1][warp][i][lane] = mine[i].sum;
    memory[2][warp][i][lane] = mine[i].weighted;
  }
  __syncthreads();
  if (warp >= N) return;
  Online all;  // of one row: warp after warp
  for (int w = 0; w < kWarps; ++w)
    all.join(memory[0][w][warp][lane], memory[1][w][warp][lane], memory[2][w][warp][lane]);
  float* out = parts + int64_t{blockIdx.y} * 3 * a.rows + int64_t{blockIdx.x} * kRows<T> + lane * N + warp;
  out[0] = all.max;
  out[a.rows] = all.sum;
  out[2 * a.rows] = all.weighted;
}

// A thread a row: share after share.
template <class Cap, class T>
__global__ void __launch_bounds__(kFinishThreads) column_losses(const LossRows a, const float* parts, int shares) {
  const int64_t row = int64_t{blockIdx.x} * kFinishThreads + threadIdx.x;
  if (row >= a.rows) return;
  const Cap cap{a.softcap};
  const int64_t t = a.target[row];
  if (t == a.ignore_index) {
    store_lse(a, row, {0.f, 0.f});
    a.loss[row] = 0.f;
    return;
  }
  Online all;
  for (int s = 0; s < shares; ++s) {
    const float* one = parts + int64_t{s} * 3 * a.rows + row;
    all.join(one[0], one[a.rows], one[2 * a.rows]);
  }
  store_lse(a, row, all.lse());
  a.loss[row] = loss_of(a, cap, all, parts_of(a, t), target_logit<T>(a, row));
}

template <class Cap, class T>
__global__ void __launch_bounds__(kThreads, 2) column_gradients(const LossRows a, const float* scale, int64_t each) {
  constexpr int N = kPerVector<T>;
  constexpr bool kCoarse = kCoarseOf<T>;
  const Cap cap{a.softcap};
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const Share share = share_of(a.vocab, each);
  const int64_t first = int64_t{blockIdx.x} * kRows<T> + lane * N;
  Gradient g[N];
  int target[N];
  uint32_t ignored = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t t = a.target[first + i];
    const bool known = is_word(a, t);
    target[i] = known ? int(t) : -1;
    g[i] = gradient_of(a, scale, first + i, load_lse(a, first + i), parts_of(a, t), known ? 1.f : NAN);
    if (t == a.ignore_index) ignored |= 1u << i;
  }
  T* z = static_cast<T*>(a.dlogits) + first;
  for (int64_t v = share.begin + warp; v < share.end; v += kTogether * kWarps) {
    Pack<T, N> p[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (v + k * kWarps < share.end) p[k] = load<N>(z + (v + k * kWarps) * a.dlogits_stride);
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t at = v + k * kWarps;
      if (at >= share.end) continue;
      float f[N];
      unpack(p[k], f);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float d = g[i].template operator()<kCoarse>(cap, f[i], target[i] == int(at), g[i].shift);
        f[i] = ignored >> i & 1 ? 0.f : d;
      }
      store(z + at * a.dlogits_stride, pack<T>(f));
    }
  }
}

int64_t shares_of(
    const LossRows& a) {  // of the vocabulary: about four blocks a multiprocessor, each at many rows of it
  const int64_t side = std::max<int64_t>(a.rows / 256, 1), wanted = divide_up(int64_t{multiprocessors()} * 4, side);
  return std::clamp<int64_t>(wanted, 1, divide_up(a.vocab, int64_t{kWarps} * kTogether));
}

template <class... Wanted, class... Given>
void launch_shares(void (*kernel)(Wanted...), int64_t sides, int64_t shares, Stream stream, Given&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(sides), unsigned(shares));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  checked(cudaLaunchKernelEx(&config, kernel, Wanted(std::forward<Given>(args))...), "kernel launch");
}

}  // namespace

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  checked(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
          "copy");
}

int64_t column_scratch(const LossRows& a) { return shares_of(a) * 3 * a.rows; }

void columns(const LossRows& a, const float* scale, float* scratch, Stream stream) {
  if (a.rows == 0 || a.vocab == 0) return;
  const bool plain = !a.token_scaling && a.class_sum == nullptr;  // else the other way (rows_in_dweight)
  if (a.rows % kColumnRows != 0 || a.dlogits != a.logits || a.vocab > INT32_MAX || !plain)
    throw std::runtime_error(
        "cross_entropy of transposed logits: expected rows in whole blocks, gradients in place, "
        "a vocabulary below 2^31 and no options of rows(); got others; that is an error of the package");
  const int64_t shares = shares_of(a), each = divide_up(a.vocab, shares);
  with_dtype(a.dtype, [&]<typename T>() {
    const auto run = [&]<class Cap>() {
      const int64_t sides = a.rows / kRows<T>;
      if (!a.lse_known) {
        launch_shares(&column_sums<Cap, T>, sides, shares, stream, a, each, scratch);
        launch(&column_losses<Cap, T>, divide_up(a.rows, kFinishThreads), kFinishThreads, stream, a, scratch,
               int(shares));
      }
      launch_shares(&column_gradients<Cap, T>, sides, shares, stream, a, scale, each);
    };
    if (a.softcap > 0.f)
      run.template operator()<Capped>();
    else
      run.template operator()<Plain>();
  });
}

}  // namespace loss::cuda
