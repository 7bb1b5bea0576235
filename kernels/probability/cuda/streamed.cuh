// Softmax of rows that are longer than a block holds in registers: streamed through clusters
// (streamed_rows.cuh).
#pragma once

#include "kernels/common/gpu/reduce/max.cuh"
#include "kernels/common/gpu/tile/copy_async.cuh"
#include "kernels/common/gpu/tile/held_rows.cuh"
#include "kernels/common/gpu/tile/streamed_rows.cuh"
#include "kernels/probability/cuda/rows.cuh"
#include "kernels/probability/probability.h"

namespace probability::gpu {

constexpr int kStreamDepth = 3, kStreamVectors = 8;

extern __shared__ uint4 softmax_ring[];

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) softmax_streamed(const Softmax a) {
  constexpr int N = kPerVector<T>;
  constexpr bool kCoarse = sizeof(T) == 2;
  using Exp = std::conditional_t<kCoarse, Exp2, NaturalExp>;
  using Exchange = RowExchange<SoftmaxSums<1, 0, Exp>, true>;
  __shared__ typename Exchange::Memory memory;
  const int64_t step = gridDim.x / blocks_of_row<true>(), begin = blockIdx.x / blocks_of_row<true>();
  const StreamedRows<T, 1, kStreamVectors, kStreamDepth, kThreads> stream(softmax_ring, a.cols / N,
                                                                          rank_in_row<true>());
  const auto fetch = [&](int64_t row, int slot) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    stream.fetch(slot, row < a.rows, [&](int, int k) { return x + stream.element(k); });
  };
  // Where the result is rounded to 16 bits, powers of 2 of what is scaled in the same instruction as top is taken off.
  constexpr float kScale = kCoarse ? kLog2E : 1.f;
  const auto power = [](float x) { return kCoarse ? exp2_approx(x) : expf(x); };
  const auto state = [&](int slot) {
    SoftmaxState<Exp> mine;
#pragma unroll
    for (int k = 0; k < kStreamVectors; ++k) mine.max = fmaxf(mine.max, max_of(stream.get(slot, 0, k)));
    mine.max = warp_max_by_bits(mine.max) * kScale;
    const float from = -finite_or_zero(mine.max);
#pragma unroll
    for (int k = 0; k < kStreamVectors; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
#pragma unroll
      for (int i = 0; i < N; ++i) mine.sum += power(fmaf(f[i], kScale, from));
    }
    SoftmaxSums<1, 0, Exp> found;
    found.v[0] = mine.max, found.v[1] = warp_sum(mine.sum);
    return found;
  };
  const bool writes = threadIdx.x % 32 == 0;
  stream.begin(kLowestWord<T>);
#pragma unroll
  for (int d = 0; d < kStreamDepth; ++d) fetch(begin + d * step, d);
  Exchange exchange(memory);
  copy_async_wait<kStreamDepth - 1>();
  exchange.send(state(0), writes);
  int slot = 0;
  for (int64_t row = begin; row < a.rows; row += step) {
    const int after = stream.next(slot);
    const bool more = row + step < a.rows;
    SoftmaxSums<1, 0, Exp> ahead;
    if (more) {
      copy_async_wait<kStreamDepth - 2>();
      ahead = state(after);
    }
    const auto all = exchange.receive();
    if (more) exchange.send(ahead, writes);
    const float from = -finite_or_zero(all.max(0)) - (kCoarse ? log2f(all.sum(0)) : 0.f);
    const float share = 1.f / all.sum(0);
    T* y = static_cast<T*>(a.out) + row * a.cols;
#pragma unroll
    for (int k = 0; k < kStreamVectors; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = power(fmaf(f[i], kScale, from)) * (kCoarse ? 1.f : share);
      if (stream.has(k)) store_floats<N>(y + stream.element(k), f);
    }
    fetch(row + kStreamDepth * step, slot);
    slot = after;
  }
  exchange.end();
}

}  // namespace probability::gpu
