// Cross-entropy on a GPU: a block a row. The row is read once from memory where losses and gradients are made together:
// a part of it stays in shared memory, and the rest is still in L2.
#undef NDEBUG  // a target outside of the vocabulary stops the GPU in every build, as it does in torch
#include <algorithm>
#include <cassert>

#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/reduce/max.cuh"
#include "kernels/loss/cuda/formulas.cuh"
#include "kernels/loss/cuda/loss.h"

namespace loss::cuda {
namespace {

using namespace kernels;
using namespace kernels::gpu;
using namespace loss::gpu;

constexpr int kMaxThreads = 1024, kTogether = 4;  // vectors a thread has in flight
// Measured best: many small blocks where only losses are made; large ones where gradients are; and where both are, few
// at once, each with a part of its row in shared memory, so that the rest is still in L2 when it is read again.
constexpr int kLossThreads = 256, kKeptBytes = 64 << 10, kBlocksPerSm = 2;
constexpr int kOneBlock = 1024, kWalkThreads = 256;

struct RowMemory {
  float max[2][32], sum[2][32], weighted[2][32];
};

// The states of a block's threads as one, the same bits in every thread. `turn` alternates: one barrier a row.
__device__ __forceinline__ Online merged(Online mine, RowMemory& memory, int turn) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  const auto of_warp = [](Online o) {
    const float max = warp_max(o.max);
    o.sum = warp_sum(o.sum * o.weight_at(max));
    o.weighted = warp_sum(o.weighted);
    o.max = max;
    return o;
  };
  mine = of_warp(mine);
  if (lane == 0) {
    memory.max[turn][warp] = mine.max;
    memory.sum[turn][warp] = mine.sum;
    memory.weighted[turn][warp] = mine.weighted;
  }
  __syncthreads();
  Online all;
  if (lane < warps) {
    all.max = memory.max[turn][lane];
    all.sum = memory.sum[turn][lane];
    all.weighted = memory.weighted[turn][lane];
  }
  return of_warp(all);
}

// A row as vectors, with single elements before the first whole vector and after the last.
template <class T, int N>
struct Row {
  int64_t head, vectors, singles;
  __device__ Row(const T* z, int64_t vocab) {
    const int64_t off = N == 1 ? 0 : int64_t(reinterpret_cast<uintptr_t>(z) % 16 / sizeof(T));
    head = off == 0 ? 0 : N - off;
    if (head > vocab) head = vocab;
    vectors = (vocab - head) / N;
    singles = vocab - vectors * N;
  }
  __device__ int64_t col(int64_t v) const { return head + v * N; }
  __device__ int64_t single(int64_t i) const { return i < head ? i : i + vectors * N; }
};

// kWeighted: labels are smoothed by class weights. Who asks for that goes number by number (N = 1).
template <bool kWeighted, class Cap, class T, int N>
__device__ __forceinline__ Online sums_of(const LossRows& a, Cap cap, const T* z, const Row<T, N>& r, float pivot,
                                          uint4* kept, int64_t keep) {
  constexpr bool kCoarse = kCoarseOf<T>;
  static_assert(!kWeighted || N == 1);
  const bool smoothed = !kWeighted && a.label_smoothing != 0.f;
  Online mine;
  for (int64_t first = threadIdx.x; first < r.vectors; first += int64_t{blockDim.x} * kTogether) {
    Pack<T, N> p[kTogether];
    float highest = -INFINITY;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v < r.vectors) p[k] = load<N>(z + r.col(v));
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v >= r.vectors) continue;
      if constexpr (N > 1) {
        if (v < keep) kept[v] = make_uint4(p[k].w[0], p[k].w[1], p[k].w[2], p[k].w[3]);
      }
      highest = fmaxf(highest, max_of(p[k]));
    }
    mine.raise<kCoarse>(cap.u(highest));  // u grows with z
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (first + int64_t{k} * blockDim.x >= r.vectors) continue;
      float u[N];
      unpack(p[k], u);
#pragma unroll
      for (int i = 0; i < N; ++i) u[i] = cap.u(u[i]);
      mine.add<kCoarse>(u, smoothed, pivot);
      if constexpr (kWeighted) mine.weighted += a.class_weight[r.col(first + int64_t{k} * blockDim.x)] * (u[0] - pivot);
    }
  }
  if constexpr (N > 1) {
    if (threadIdx.x < r.singles) {
      const float u[1] = {cap.u(to_float(z[r.single(threadIdx.x)]))};
      mine.raise<kCoarse>(u[0]);
      mine.add<kCoarse>(u, smoothed, pivot);
    }
  }
  return mine;
}

// kAgain: the row was read just now, and what other blocks read is to stay in L2 until they come back to it.
template <bool kAgain, bool kWeighted, class Cap, class T, int N>
__device__ __forceinline__ void gradients(const LossRows& a, const Gradient& g, Cap cap, int64_t t, const T* z, T* dz,
                                          const Row<T, N>& r, const uint4* kept, int64_t keep) {
  constexpr bool kCoarse = kCoarseOf<T>;
  for (int64_t first = threadIdx.x; first < r.vectors; first += int64_t{blockDim.x} * kTogether) {
    Pack<T, N> p[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v >= r.vectors) continue;
      if constexpr (N > 1 && kAgain) {
        if (v < keep) {
          const uint4 four = kept[v];
          p[k].w[0] = four.x, p[k].w[1] = four.y, p[k].w[2] = four.z, p[k].w[3] = four.w;
          continue;
        }
      }
      p[k] = kAgain ? load_streaming<N>(z + r.col(v)) : load<N>(z + r.col(v));
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int64_t v = first + int64_t{k} * blockDim.x;
      if (v >= r.vectors) continue;
      float f[N];
      unpack(p[k], f);
      const int64_t at = t - r.col(v);
      float shift = g.shift;
      if constexpr (kWeighted) shift *= a.class_weight[r.col(v)];
      if (at >= 0 && at < N) {
#pragma unroll
        for (int i = 0; i < N; ++i) f[i] = g.template operator()<kCoarse>(cap, f[i], at == i, shift);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) f[i] = g.template operator()<kCoarse>(cap, f[i], false, shift);
      }
      if constexpr (kAgain)
        store_streaming(dz + r.col(v), pack<T>(f));
      else
        store_floats<N>(dz + r.col(v), f);
    }
  }
  if constexpr (N > 1) {
    if (threadIdx.x < r.singles) {
      const int64_t col = r.single(threadIdx.x);
      dz[col] = from_float<T>(g.template operator()<kCoarse>(cap, to_float(z[col]), col == t, g.shift));
    }
  }
}

template <class T, int N>
__device__ __forceinline__ void zero(T* dz, const Row<T, N>& r) {
  for (int64_t v = threadIdx.x; v < r.vectors; v += blockDim.x) store(dz + r.col(v), Pack<T, N>{});
  if constexpr (N > 1) {
    if (threadIdx.x < r.singles) dz[r.single(threadIdx.x)] = from_float<T>(0.f);
  }
}

template <class Cap, class T, int N, bool kWeighted>
__global__ void __launch_bounds__(kMaxThreads) loss_rows(const LossRows a, const float* scale, int64_t keep) {
  extern __shared__ uint4 kept[];
  __shared__ RowMemory memory;
  const Cap cap{a.softcap};
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* z = static_cast<const T*>(a.logits) + row * a.logits_stride;
    T* dz = a.dlogits == nullptr ? nullptr : static_cast<T*>(a.dlogits) + row * a.dlogits_stride;
    const Row<T, N> r(z, a.vocab);
    const int64_t t = a.target[row];
    if (t == a.ignore_index) {
      if (threadIdx.x == 0 && a.loss != nullptr) a.loss[row] = 0.f;
      if (threadIdx.x == 0 && a.lse != nullptr && !a.lse_known) store_lse(a, row, {0.f, 0.f});
      if (dz != nullptr) zero(dz, r);
      continue;
    }
    const bool known = is_word(a, t);
    Lse lse = a.lse_known ? load_lse(a, row) : Lse{0.f, 0.f};
    float zt = 0.f;
    // z may be dz: read before a barrier, written after it
    if (!a.lse_known || a.token_scaling) zt = known ? to_float(z[t]) : NAN;
    if (!a.lse_known) {
      const Online sums = merged(sums_of<kWeighted>(a, cap, z, r, pivot_of(cap, zt), kept, keep), memory, turn);
      turn ^= 1;
      lse = sums.lse();
      if (threadIdx.x == 0) {
        if (a.lse != nullptr) store_lse(a, row, lse);
        if (a.loss != nullptr) a.loss[row] = loss_of(a, cap, sums, parts_of(a, t), zt);
      }
    } else if (a.token_scaling) {
      __syncthreads();
    }
    if (dz == nullptr) continue;
    const float token = known ? token_scale(a, cap, zt, lse) : NAN;
    const Gradient gradient = gradient_of(a, scale, row, lse, parts_of(a, t), token);
    if (a.lse_known)
      gradients<false, kWeighted>(a, gradient, cap, t, z, dz, r, kept, 0);
    else
      gradients<true, kWeighted>(a, gradient, cap, t, z, dz, r, kept, keep);
  }
}

template <class Cap, class T, int N, bool kWeighted = false>
void launch_rows(const LossRows& a, const float* scale, Stream stream) {
  const int64_t vectors = divide_up(a.vocab, N);
  const int most = a.dlogits == nullptr ? kLossThreads : kMaxThreads;
  const int threads = int(std::clamp<int64_t>(divide_up(vectors, kTogether * 32) * 32, 64, most));
  const bool both = a.dlogits != nullptr && !a.lse_known && threads == most;
  const int64_t keep = both && N > 1 ? std::min<int64_t>(vectors, kKeptBytes / 16) : 0;
  const int64_t blocks = both ? int64_t{multiprocessors()} * kBlocksPerSm : INT32_MAX;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(std::min<int64_t>(a.rows, blocks)));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(keep) * 16;
  config.stream = static_cast<cudaStream_t>(stream);
  if (keep > 0) {
    checked(
        cudaFuncSetAttribute(&loss_rows<Cap, T, N, kWeighted>, cudaFuncAttributeMaxDynamicSharedMemorySize, kKeptBytes),
        "shared memory");
  }
  checked(cudaLaunchKernelEx(&config, &loss_rows<Cap, T, N, kWeighted>, a, scale, keep), "kernel launch");
}

template <class T>
__device__ __forceinline__ T block_sum(T v) {  // in every thread of warp 0; kOneBlock threads
  __shared__ T parts[32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(kAllLanes, v, o);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[threadIdx.x % 32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(kAllLanes, v, o);
  return v;
}

__device__ __forceinline__ long long valid_rows(const int64_t* target, int64_t rows, int64_t ignore_index) {
  long long mine = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) mine += target[row] != ignore_index;
  return block_sum(mine);
}

__global__ void __launch_bounds__(kOneBlock) reduce_rows(const Reduce a) {
  double mine = 0;
  for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
    const int64_t target = a.target[row];
    assert((target >= 0 && target < a.vocab) || target == a.ignore_index);
    mine += a.row_loss[row];
  }
  if (a.out == nullptr) return;
  double sum = block_sum(mine);
  if (a.mean) {
    const long long valid = valid_rows(a.target, a.rows, a.ignore_index);
    sum = valid > 0 ? sum / double(valid) : double(NAN);
  }
  if (threadIdx.x == 0) *a.out = float(sum);
}

__global__ void __launch_bounds__(kOneBlock) scale_of(const Scale a) {
  float out = a.dloss == nullptr ? 1.f : *a.dloss;
  if (a.mean) {
    const long long valid = valid_rows(a.target, a.rows, a.ignore_index);
    if (valid > 0) out *= 1.f / float(valid);
  }
  if (threadIdx.x == 0) *a.out = out;
}

// A vector a thread, single elements in the end. A 0 stays 0, also times infinity: an ignored row has no gradient.
template <class T>
__global__ void __launch_bounds__(kWalkThreads) multiply_all(T* x, int64_t count, const float* factor) {
  constexpr int N = kPerVector<T>;
  const float by = *factor;
  if (by == 1.f) return;
  const auto times = [by](float f) { return f == 0.f ? f : f * by; };
  const int64_t step = int64_t{gridDim.x} * kWalkThreads, whole = count / N;
  for (int64_t v = int64_t{blockIdx.x} * kWalkThreads + threadIdx.x; v < whole + count % N; v += step) {
    if (v < whole) {
      float f[N];
      load_floats<N>(x + v * N, f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = times(f[i]);
      store_floats<N>(x + v * N, f);
    } else {
      T& one = x[whole * N + v - whole];
      one = from_float<T>(times(to_float(one)));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kWalkThreads) accumulate_all(const Accumulate a, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float x = a.scale * to_float(static_cast<const T*>(a.x)[i]);
    a.sum[i] = a.first ? x : a.sum[i] + x;
  }
}

// A thread a column: rows in order.
template <class T>
__global__ void __launch_bounds__(kWalkThreads) sum_columns(const ColumnSum a, int64_t cols) {
  const int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  float total = a.sum[col];
#pragma unroll 8
  for (int64_t row = 0; row < a.rows; ++row) total += to_float(static_cast<const T*>(a.x)[row * a.stride + col]);
  a.sum[col] = total;
}

int64_t walk_blocks(int64_t count) {
  return std::min<int64_t>(divide_up(count, kWalkThreads), int64_t{multiprocessors()} * 16);
}

}  // namespace

void rows(const LossRows& a, const float* scale, Stream stream) {
  if (a.rows == 0) return;
  const auto offset = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % kVectorBytes; };
  const int64_t size = size_of(a.dtype);
  // Rows of both tensors begin at the same place within a vector.
  const bool alike = a.dlogits == nullptr || (offset(a.logits) == offset(a.dlogits) &&
                                              (a.rows == 1 || (a.logits_stride - a.dlogits_stride) * size % 16 == 0));
  const bool weighted = a.class_weight != nullptr && a.label_smoothing != 0.f;
  with_dtype(a.dtype, [&]<typename T>() {
    if (weighted && a.softcap > 0.f)
      launch_rows<Capped, T, 1, true>(a, scale, stream);
    else if (weighted)
      launch_rows<Plain, T, 1, true>(a, scale, stream);
    else if (a.softcap > 0.f && alike)
      launch_rows<Capped, T, kPerVector<T>>(a, scale, stream);
    else if (alike)
      launch_rows<Plain, T, kPerVector<T>>(a, scale, stream);
    else if (a.softcap > 0.f)
      launch_rows<Capped, T, 1>(a, scale, stream);
    else
      launch_rows<Plain, T, 1>(a, scale, stream);
  });
}

void reduce(const Reduce& a, Stream stream) { launch(&reduce_rows, 1, kOneBlock, stream, a); }
void scale(const Scale& a, Stream stream) { launch(&scale_of, 1, kOneBlock, stream, a); }

void multiply(DType dtype, void* x, int64_t count, const float* factor, Stream stream) {
  if (count == 0) return;
  with_dtype(dtype, [&]<typename T>() {
    launch(&multiply_all<T>, walk_blocks(divide_up(count, kPerVector<T>)), kWalkThreads, stream, static_cast<T*>(x),
           count, factor);
  });
}

void accumulate(const Accumulate& a, int64_t count, Stream stream) {
  if (count == 0) return;
  with_dtype(a.dtype,
             [&]<typename T>() { launch(&accumulate_all<T>, walk_blocks(count), kWalkThreads, stream, a, count); });
}

void column_sum(const ColumnSum& a, int64_t cols, Stream stream) {
  if (cols == 0 || a.rows == 0) return;
  with_dtype(a.dtype, [&]<typename T>() {
    launch(&sum_columns<T>, divide_up(cols, kWalkThreads), kWalkThreads, stream, a, cols);
  });
}

}  // namespace loss::cuda
