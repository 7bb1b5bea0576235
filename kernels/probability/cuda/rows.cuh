// A block a row: a walk over its elements, and what the block's threads know together of it.
#pragma once

#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/reduce/softmax_state.cuh"

namespace probability::gpu {

using namespace kernels;
using namespace kernels::gpu;

constexpr int kMaxThreads = 1024;

template <int kNumbers>
struct Many {
  static constexpr int N = kNumbers;
};

// fn(Many<n>, col) for n elements from col on: whole vectors, then single elements.
template <int N, class Fn>
__device__ __forceinline__ void walk(int64_t cols, const Fn& fn) {
  const int64_t whole = cols / N * N;
  for (int64_t c = int64_t{threadIdx.x} * N; c < whole; c += int64_t{blockDim.x} * N) fn(Many<N>{}, c);
  if constexpr (N > 1) {
    if (whole + threadIdx.x < cols) fn(Many<1>{}, whole + threadIdx.x);  // fewer than a warp
  }
}

// The largest over the block of kMax elements at once, in every thread. As RowSum, with one barrier.
template <int kMax>
class RowMax {
 public:
  struct Memory {
    float parts[2][kMax][32];
  };
  __device__ explicit RowMax(Memory& memory) : memory_(memory) {}
  __device__ __forceinline__ void operator()(float (&v)[kMax]) {
#pragma unroll
    for (int k = 0; k < kMax; ++k) {
#pragma unroll
      for (int o = 16; o > 0; o /= 2) v[k] = fmaxf(v[k], __shfl_xor_sync(kAllLanes, v[k], o));
      if (threadIdx.x % 32 == 0) memory_.parts[turn_][k][threadIdx.x / 32] = v[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kMax; ++k) {
      for (int w = 0; w < int(blockDim.x / 32); ++w) v[k] = fmaxf(v[k], memory_.parts[turn_][k][w]);
    }
    turn_ ^= 1;
  }

 private:
  Memory& memory_;
  int turn_ = 0;
};

template <int N>
__device__ __forceinline__ void join(SoftmaxState<>& state, const float (&x)[N]) {
  float highest = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) highest = fmaxf(highest, x[i]);
  state.raise<false>(highest);
  state.add<false>(x);
}

// Rows of all tensors begin at whole vectors.
template <class... Addresses>
bool whole_vectors(int64_t rows, Addresses... addresses) {
  return rows == 0 || (addresses | ...) % kVectorBytes == 0;
}

inline int threads_for(int64_t cols, int per_thread) {
  return int(std::clamp<int64_t>(divide_up(divide_up(cols, per_thread), 32) * 32, 32, kMaxThreads));
}
inline int64_t blocks_for(int64_t rows) { return std::min<int64_t>(rows, INT32_MAX); }

}  // namespace probability::gpu
