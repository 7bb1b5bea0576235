// What goes over query rows before and after the sm_90a backward, memory bound: delta and lse as its steps want them
// and zeros to add dq to; then dq from float32 sums to rows. And the sinks' gradient.
#pragma once

#include "kernels/attention/cuda/sinks.cuh"
#include "kernels/attention/cuda/sm90_backward_block.cuh"
#include "kernels/attention/cuda/softmax.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"

namespace attention::gpu {

// The backward goes from the first batch to the last: what it begins with is prepared last, and what it ends with is
// finished first, while it is still in L2.
__device__ __forceinline__ int last_first() { return int(gridDim.x) - 1 - int(blockIdx.x); }

struct PrepareArguments {
  const void *out, *dout;
  const float *lse, *dlse, *sinks;
  float *statistics, *dq, *dsinks;  // dsinks: [slots, heads], each of a tile's rows; null without sinks
  int *added, *counter;             // null where dq is added to in any order
  Sequences sequences;
  int64_t dout_batch, dout_row, dout_head, out_batch, out_row, out_head;  // strides
  int query_slots, heads, value_dim;
};

// A block for each head of each slot of query rows. Heads are next to each other in memory: so are blocks.
template <class B>
__global__ void __launch_bounds__(kRowThreads) backward_prepare_kernel(const PrepareArguments a) {
  using T = typename B::T;
  constexpr int kLanes = B::kValueDim / 8, kAtOnce = kRowThreads / kLanes;
  const int index = last_first(), slot = index / a.heads, head = index % a.heads;
  int tile;
  const int number = a.sequences.find_queries(B::kRows, slot, tile);
  const Sequence s = a.sequences.at(number, B::kRows);
  const int64_t place = int64_t{head} * a.query_slots + slot;
  float* statistics = a.statistics + place * 2 * B::kRows;
  const int lane = threadIdx.x % kLanes;
  const float sink = a.sinks == nullptr ? 0.f : a.sinks[head] * kLog2e;
  float dsink = 0.f;
#pragma unroll
  for (int r = threadIdx.x / kLanes; r < B::kRows; r += kAtOnce) {
    const int row = tile * B::kRows + r;
    const bool inside = row < s.query_rows;
    float delta = 0.f, lse = INFINITY;
    if (inside && 8 * lane < a.value_dim) {
      const int64_t at = s.query_row + row;
      float o[8], d[8];
      unpack<T>(
          load<8>(static_cast<const T*>(a.out) + s.batch * a.out_batch + at * a.out_row + head * a.out_head + 8 * lane),
          o);
      unpack<T>(load<8>(static_cast<const T*>(a.dout) + s.batch * a.dout_batch + at * a.dout_row + head * a.dout_head +
                        8 * lane),
                d);
#pragma unroll
      for (int i = 0; i < 8; ++i) delta += o[i] * d[i];
    }
#pragma unroll
    for (int o = kLanes / 2; o > 0; o /= 2) delta += __shfl_xor_sync(kAllLanes, delta, o);
    if (lane != 0) continue;
    if (inside) {
      const int64_t at = (int64_t{s.batch} * a.heads + head) * a.sequences.query_rows + s.query_row + row;
      if (a.dlse != nullptr) delta -= a.dlse[at];
      const float exponent = a.lse[at] * kLog2e;
      if (exponent != -INFINITY) {  // else a row that sees nothing
        lse = exponent;
        if (a.sinks != nullptr) dsink -= exp2_approx(sink - exponent) * delta;
      }
    }
    statistics[r] = lse, statistics[B::kRows + r] = delta;
  }
  auto* dq = reinterpret_cast<uint4*>(a.dq + place * (B::kRows * B::kDim));
#pragma unroll
  for (int i = 0; i < B::kRows * B::kDim / 4 / kRowThreads; ++i)
    dq[i * kRowThreads + threadIdx.x] = make_uint4(0, 0, 0, 0);
  if (a.added != nullptr && threadIdx.x < B::kAdded) a.added[place * B::kAdded + threadIdx.x] = 0;
  if (a.counter != nullptr && index == 0 && threadIdx.x == 0) *a.counter = 0;
  if (a.sinks == nullptr) return;
  __shared__ float sums[kRowThreads / 32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) dsink += __shfl_xor_sync(kAllLanes, dsink, o);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = dsink;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.f;
#pragma unroll
    for (float f : sums) total += f;
    a.dsinks[int64_t{slot} * a.heads + head] = total;
  }
}

struct FinishArguments {
  void* out;  // dq
  const float* dq;
  Sequences sequences;
  int query_slots, heads, dim;
  float scale;
};

// Blocks as of backward_prepare_kernel. Warpgroups of the backward have added blocks of 64 rows and 8 columns one after
// the other, each as their threads hold it: rows first where a tile has more of them.
template <class B>
__global__ void __launch_bounds__(kRowThreads) backward_finish_kernel(const FinishArguments a) {
  using T = typename B::T;
  __shared__ __align__(16) uint16_t rows[B::kRows][B::kDim + 8];
  const int index = last_first(), slot = index / a.heads, head = index % a.heads;
  int tile;
  const int number = a.sequences.find_queries(B::kRows, slot, tile);
  const Sequence s = a.sequences.at(number, B::kRows);
  const int left = s.query_rows - tile * B::kRows;
  if (left <= 0) return;
  const int thread = threadIdx.x % kWarpgroup;
  const auto* dq = reinterpret_cast<const float4*>(a.dq + (int64_t{head} * a.query_slots + slot) * B::kRows * B::kDim);
#pragma unroll
  for (int i = 0; i < B::kRows * B::kDim / 4 / kRowThreads; ++i) {
    const int block = i * (kRowThreads / kWarpgroup) + threadIdx.x / kWarpgroup;
    const int row = block / (B::kDim / 8) * 64 + thread / 32 * 16 + thread % 32 / 4;
    const int column = block % (B::kDim / 8) * 8 + thread % 4 * 2;
    const float4 v = dq[i * kRowThreads + threadIdx.x];
    *reinterpret_cast<uint32_t*>(&rows[row][column]) = pack_pair<T>(v.x * a.scale, v.y * a.scale);
    *reinterpret_cast<uint32_t*>(&rows[row + 8][column]) = pack_pair<T>(v.z * a.scale, v.w * a.scale);
  }
  __syncthreads();
  constexpr int kPieces = B::kDim / 8;
  const int64_t first = int64_t{s.batch} * a.sequences.query_rows + s.query_row + tile * B::kRows;
#pragma unroll
  for (int i = threadIdx.x; i < B::kRows * kPieces; i += kRowThreads) {
    const int r = i / kPieces, piece = i % kPieces;
    if (r < left && 8 * piece < a.dim)
      reinterpret_cast<uint4*>(a.out)[((first + r) * a.heads + head) * (a.dim / 8) + piece] =
          *reinterpret_cast<const uint4*>(&rows[r][8 * piece]);
  }
}

}  // namespace attention::gpu
