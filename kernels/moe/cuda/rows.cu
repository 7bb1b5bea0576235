// What happens to rows between the products on a GPU: activations, sums over an expert's rows and a token's experts.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/moe/cuda/activations.cuh"
#include "kernels/moe/cuda/moe.h"

namespace moe::cuda {
namespace {

using namespace kernels::gpu;
using namespace moe::gpu;
using kernels::divide_up;
using kernels::Divider;
using kernels::DType;

struct Scores {
  const void* data;  // null: 1
  bool wide;         // float32
  template <class T>
  __device__ __forceinline__ float at(int64_t assignment) const {
    if (data == nullptr) return 1.f;
    return wide ? static_cast<const float*>(data)[assignment] : to_float(static_cast<const T*>(data)[assignment]);
  }
};
Scores scores_of(const Problem& p, const void* data) { return {data, p.score_dtype == DType::kFloat32}; }

// The expert of a slot: the last whose offset is not behind it.
__device__ __forceinline__ int expert_of(const int32_t* offsets, int experts, int slot) {
  int low = 0, high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (offsets[middle] <= slot ? low : high) = middle;
  }
  return low;
}

// ---- activations: a warp a row, N elements a lane at a time
constexpr int kRowWarps = 8;

struct ActArguments {
  const int32_t *order, *offsets;
  Scores scores;
  const void *h, *bias;
  void *a, *dh;
  Down down;
  Limits limits;
  int64_t slots;
  int experts, top_k, inner, hidden;
  bool interleaved, scale_input;
};

// Gate and value of N columns from a row of h, or to it.
template <bool kGate, int N, class T>
__device__ __forceinline__ void read(const T* row, int inner, bool interleaved, int col, float (&g)[N], float (&u)[N]) {
  if (kGate && interleaved) {
    float both[2][N];
    unpack(load<N>(row + 2 * col), both[0]);
    unpack(load<N>(row + 2 * col + N), both[1]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      g[i] = both[2 * i / N][2 * i % N];
      u[i] = both[(2 * i + 1) / N][(2 * i + 1) % N];
    }
    return;
  }
  unpack(load<N>(row + col), g);
  if constexpr (kGate) unpack(load<N>(row + inner + col), u);
}
template <bool kGate, int N, class T>
__device__ __forceinline__ void write(T* row, int inner, bool interleaved, int col, const float (&g)[N],
                                      const float (&u)[N]) {
  if (kGate && interleaved) {
    float both[2][N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      both[2 * i / N][2 * i % N] = g[i];
      both[(2 * i + 1) / N][(2 * i + 1) % N] = u[i];
    }
    store(row + 2 * col, pack<T>(both[0]));
    store(row + 2 * col + N, pack<T>(both[1]));
    return;
  }
  store(row + col, pack<T>(g));
  if constexpr (kGate) store(row + inner + col, pack<T>(u));
}

// s h0 + b1 of N columns in place of h0.
template <bool kGate, int N, class T>
__device__ __forceinline__ void scale_and_add(const ActArguments& a, float s, const T* bias, int col, float (&g)[N],
                                              float (&u)[N]) {
  float bg[N] = {}, bu[N] = {};
  if (bias != nullptr) read<kGate>(bias, a.inner, a.interleaved, col, bg, bu);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] = s * g[i] + bg[i];
    if constexpr (kGate) u[i] = s * u[i] + bu[i];
  }
}
template <class T>
__device__ __forceinline__ const T* bias_of(const ActArguments& a, int slot, int columns) {
  return a.bias == nullptr ? nullptr
                           : static_cast<const T*>(a.bias) + int64_t{expert_of(a.offsets, a.experts, slot)} * columns;
}

template <class Formula, class T, int N>
__global__ void __launch_bounds__(32 * kRowWarps) activate_rows(const ActArguments a) {
  constexpr bool kGate = Formula::kGate;
  const int64_t slot = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (slot >= a.offsets[a.experts]) return;
  const int columns = kGate ? 2 * a.inner : a.inner;
  const T* h = static_cast<const T*>(a.h) + slot * columns;
  const T* bias = bias_of<T>(a, int(slot), columns);
  const float s = a.scale_input ? a.scores.at<T>(a.order[slot]) : 1.f;
  for (int col = threadIdx.x % 32 * N; col < a.inner; col += 32 * N) {
    float g[N], u[N] = {}, out[N];
    read<kGate>(h, a.inner, a.interleaved, col, g, u);
    if (a.scale_input) scale_and_add<kGate>(a, s, bias, col, g, u);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = Formula::template value<kCoarseOf<T>>(a.limits, g[i], u[i]);
    store(static_cast<T*>(a.a) + slot * a.inner + col, pack<T>(out));
  }
}

template <class T>
__device__ __forceinline__ void store_score(const ActArguments& a, int64_t assignment, float ds) {
  if (a.scores.wide)
    static_cast<float*>(a.down.dscores)[assignment] = ds;
  else
    static_cast<T*>(a.down.dscores)[assignment] = from_float<T>(ds);
}

template <class Formula, class T, int N>
__global__ void __launch_bounds__(32 * kRowWarps) activate_rows_backward(const ActArguments a) {
  constexpr bool kGate = Formula::kGate;
  const int64_t slot = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  if (slot >= a.offsets[a.experts]) return;
  const int columns = kGate ? 2 * a.inner : a.inner, lane = threadIdx.x % 32;
  const T* h = static_cast<const T*>(a.h) + slot * columns;
  const T* bias = bias_of<T>(a, int(slot), columns);
  const int64_t assignment = a.order[slot];
  const float s = a.scores.at<T>(assignment), of_y = a.scale_input ? 1.f : s;
  float ds = 0.f;
  for (int col = lane * N; col < a.inner; col += 32 * N) {
    float g[N], u[N] = {}, g0[N], u0[N], d[N], out[N];
    read<kGate>(h, a.inner, a.interleaved, col, g, u);
#pragma unroll
    for (int i = 0; i < N; ++i) g0[i] = g[i], u0[i] = u[i];
    if (a.scale_input) scale_and_add<kGate>(a, s, bias, col, g, u);
    T* both = static_cast<T*>(a.a) + slot * a.inner + col;  // dA', and then A'
    unpack(load<N>(both), d);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Slopes at = Formula::template slopes<kCoarseOf<T>>(a.limits, g[i], u[i], of_y * d[i]);
      ds += a.scale_input ? at.dg * g0[i] + at.du * u0[i] : d[i] * at.value;
      out[i] = of_y * at.value, g[i] = at.dg, u[i] = at.du;
    }
    store(both, pack<T>(out));
    write<kGate>(static_cast<T*>(a.dh) + slot * columns, a.inner, a.interleaved, col, g, u);
  }
  if (a.down.b2 != nullptr && !a.scale_input) {
    const T* b2 = static_cast<const T*>(a.down.b2) + int64_t{expert_of(a.offsets, a.experts, int(slot))} * a.hidden;
    const T* dy = static_cast<const T*>(a.down.dy) + assignment / a.top_k * a.down.dy_stride;
    for (int col = lane; col < a.hidden; col += 32) ds += to_float(dy[col]) * to_float(b2[col]);
  }
  ds = warp_sum(ds);
  if (lane == 0) store_score<T>(a, assignment, ds);
}

ActArguments arguments_of(const Activation& a) {
  const Problem& p = a.p;
  return {.order = a.index.order,
          .offsets = a.index.offsets,
          .scores = scores_of(p, a.scores),
          .h = a.h,
          .bias = a.bias,
          .a = a.a,
          .dh = a.dh,
          .down = {},
          .limits = {p.alpha, p.limit},
          .slots = p.assignments(),
          .experts = int(p.experts),
          .top_k = int(p.top_k),
          .inner = int(p.inner),
          .hidden = int(p.hidden),
          .interleaved = p.interleaved,
          .scale_input = p.scale_input};
}

bool whole_vectors(const Problem& p, std::initializer_list<const void*> all) {
  uintptr_t addresses = uintptr_t(p.inner * size_of(p.dtype));
  for (const void* data : all) addresses |= reinterpret_cast<uintptr_t>(data);
  return addresses % kernels::kVectorBytes == 0;
}

template <bool kBackward>
void run_activation(const ActArguments& a, const Problem& p, Stream stream) {
  if (a.slots == 0) return;
  const bool whole = whole_vectors(p, {a.h, a.a, a.dh, a.bias});
  with_act(p.act, [&]<class Formula>() {
    with_dtype(p.dtype, [&]<typename T>() {
      const auto run = [&](auto* kernel) { launch(kernel, divide_up(a.slots, kRowWarps), 32 * kRowWarps, stream, a); };
      if constexpr (kBackward)
        whole ? run(&activate_rows_backward<Formula, T, kPerVector<T>>) : run(&activate_rows_backward<Formula, T, 1>);
      else
        whole ? run(&activate_rows<Formula, T, kPerVector<T>>) : run(&activate_rows<Formula, T, 1>);
    });
  });
}

// ---- sums over a token's experts: a thread takes N columns of a token
constexpr int kCombineThreads = 256;

struct CombineArguments {
  const int32_t* slots;
  Scores scores;
  const void* rows;
  void* y;
  int top_k, hidden, blocks_a_token;
};

template <class T, bool kWhole>
__global__ void __launch_bounds__(kCombineThreads) combine_rows(const CombineArguments a, Divider token_of) {
  constexpr int N = kWhole ? kPerVector<T> : 1, kAtOnce = 4;
  grid_dependency_wait();
  const int64_t token = token_of(blockIdx.x);
  const int col = (int(blockIdx.x - token * a.blocks_a_token) * kCombineThreads + int(threadIdx.x)) * N;
  if (col >= a.hidden) return;
  const int64_t first = token * a.top_k;
  float sum[N] = {};
  for (int j = 0; j < a.top_k; j += kAtOnce) {
    Pack<T, N> row[kAtOnce];
    float s[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = j + i < a.top_k ? a.slots[first + j + i] : -1;
      s[i] = 0.f, row[i] = {};
      if (slot < 0) continue;  // adds 0 times 0
      s[i] = a.scores.at<T>(first + j + i);
      row[i] = load<N>(static_cast<const T*>(a.rows) + int64_t{slot} * a.hidden + col);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float v[N];
      unpack(row[i], v);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += s[i] * v[n];
    }
  }
  store(static_cast<T*>(a.y) + token * a.hidden + col, pack<T>(sum));
}

// ---- sums over an expert's rows: a block takes 32 columns, its warps rows in turn
constexpr int kSumWarps = 16;

struct SumArguments {
  const int32_t *order, *offsets;
  Scores scores;
  const void* rows;
  void* out;
  int64_t stride;
  int top_k, cols;
  bool tokens;
};

template <class T>
__global__ void __launch_bounds__(32 * kSumWarps) sum_rows(const SumArguments a, int blocks_an_expert) {
  __shared__ float parts[kSumWarps][32];
  const int expert = int(blockIdx.x) / blocks_an_expert, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int col = int(blockIdx.x) % blocks_an_expert * 32 + lane, end = a.offsets[expert + 1];
  float sum = 0.f;
  for (int slot = a.offsets[expert] + warp; slot < end && col < a.cols; slot += kSumWarps) {
    const int64_t assignment = a.order[slot], row = a.tokens ? assignment / a.top_k : slot;
    sum += a.scores.at<T>(assignment) * to_float(static_cast<const T*>(a.rows)[row * a.stride + col]);
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= a.cols) return;
#pragma unroll
  for (int w = 1; w < kSumWarps; ++w) sum += parts[w][lane];
  static_cast<T*>(a.out)[int64_t{expert} * a.cols + col] = from_float<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(256)
    scale_slots(const int32_t* order, const int32_t* offsets, int experts, Scores scores, T* rows, int cols) {
  const int64_t slot = blockIdx.x;
  if (slot >= offsets[experts]) return;
  const float s = scores.at<T>(order[slot]);
  for (int col = threadIdx.x; col < cols; col += 256)
    rows[slot * cols + col] = from_float<T>(s * to_float(rows[slot * cols + col]));
}

}  // namespace

void activate(const Activation& a, Stream stream) { run_activation<false>(arguments_of(a), a.p, stream); }

void activate_backward(const Activation& a, const Down& d, Stream stream) {
  ActArguments arguments = arguments_of(a);
  arguments.down = d;
  run_activation<true>(arguments, a.p, stream);
}

void combine(const Problem& p, const Index& index, const void* scores, const void* rows, void* y, Stream stream) {
  if (p.tokens == 0) return;
  with_dtype(p.dtype, [&]<typename T>() {
    const bool whole =
        (reinterpret_cast<uintptr_t>(rows) | reinterpret_cast<uintptr_t>(y) | uintptr_t(p.hidden * sizeof(T))) %
            kernels::kVectorBytes ==
        0;
    const int64_t blocks = divide_up(p.hidden, kCombineThreads * (whole ? kPerVector<T> : 1));
    const CombineArguments a{.slots = index.slots,
                             .scores = scores_of(p, scores),
                             .rows = rows,
                             .y = y,
                             .top_k = int(p.top_k),
                             .hidden = int(p.hidden),
                             .blocks_a_token = int(blocks)};
    launch_after(whole ? &combine_rows<T, true> : &combine_rows<T, false>, p.tokens * blocks, kCombineThreads, stream,
                 a, kernels::Divider(blocks));
  });
}

void bias_gradient(const Problem& p, const Index& index, const BiasGradient& b, Stream stream) {
  const int64_t blocks = divide_up(b.cols, 32);
  const SumArguments a{.order = index.order,
                       .offsets = index.offsets,
                       .scores = scores_of(p, b.scores),
                       .rows = b.rows,
                       .out = b.db,
                       .stride = b.stride,
                       .top_k = int(p.top_k),
                       .cols = int(b.cols),
                       .tokens = b.tokens};
  with_dtype(p.dtype,
             [&]<typename T>() { launch(&sum_rows<T>, p.experts * blocks, 32 * kSumWarps, stream, a, int(blocks)); });
}

void scale_rows(const Problem& p, const Index& index, const void* scores, void* rows, int64_t cols, Stream stream) {
  if (p.assignments() == 0) return;
  with_dtype(p.dtype, [&]<typename T>() {
    launch(&scale_slots<T>, p.assignments(), 256, stream, index.order, index.offsets, int(p.experts),
           scores_of(p, scores), static_cast<T*>(rows), int(cols));
  });
}

}  // namespace moe::cuda
