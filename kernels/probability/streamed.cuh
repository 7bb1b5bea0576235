// Softmax of rows that are longer than a block holds in registers: streamed through clusters
// (streamed_rows.cuh).
#pragma once

#include "kernels/common/gpu/held_rows.cuh"
#include "kernels/common/gpu/streamed_rows.cuh"
#include "kernels/probability/probability.h"
#include "kernels/probability/rows.cuh"

namespace probability::gpu {

constexpr int kStreamThreads = 512, kStreamDepth = 3, kStreamVectors = 8;

extern __shared__ uint4 softmax_ring[];

template <class T>
__global__ void __launch_bounds__(kStreamThreads, 1) softmax_streamed(const Softmax a) {
  constexpr int N = kPerVector<T>;
  constexpr bool kCoarse = sizeof(T) == 2;
  using Exchange = RowExchange<SoftmaxSums<1, 0, false>, true>;
  __shared__ typename Exchange::Memory memory;
  const int64_t step = gridDim.x / blocks_of_row<true>(), begin = blockIdx.x / blocks_of_row<true>();
  const StreamedRows<T, 1, kStreamVectors, kStreamDepth> stream(softmax_ring, a.cols / N, rank_in_row<true>());
  const auto fetch = [&](int64_t row, int slot) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    stream.fetch(slot, row < a.rows, [&](int, int k) { return x + int64_t{stream.vector(k)} * N; });
  };
  const auto state = [&](int slot) {
    SoftmaxState mine;
#pragma unroll
    for (int k = 0; k < kStreamVectors; ++k) mine.top = fmaxf(mine.top, highest_of(stream.get(slot, 0, k)));
    mine.top = warp_max(mine.top);
#pragma unroll
    for (int k = 0; k < kStreamVectors; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
      mine.add<kCoarse>(f);
    }
    SoftmaxSums<1, 0, false> found;
    found.v[0] = mine.top, found.v[1] = warp_sum(mine.total);
    return found;
  };
  const bool writes = threadIdx.x % 32 == 0;
  stream.begin(kLowestWord<T>);
#pragma unroll
  for (int d = 0; d < kStreamDepth; ++d) fetch(begin + d * step, d);
  Exchange exchange(memory);
  wait_for_all_but<kStreamDepth - 1>();
  exchange.send(state(0), writes);
  int slot = 0;
  for (int64_t row = begin; row < a.rows; row += step) {
    const int after = stream.next(slot);
    const bool more = row + step < a.rows;
    SoftmaxSums<1, 0, false> ahead;
    if (more) {
      wait_for_all_but<kStreamDepth - 2>();
      ahead = state(after);
    }
    const auto all = exchange.receive();
    if (more) exchange.send(ahead, writes);
    const float from = finite_or_zero(all.top(0)), share = 1.f / all.total(0);
    T* y = static_cast<T*>(a.out) + row * a.cols;
#pragma unroll
    for (int k = 0; k < kStreamVectors; ++k) {
      float f[N];
      unpack(stream.get(slot, 0, k), f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = softmax_exp<kCoarse>(f[i] - from) * share;
      if (stream.has(k)) store_floats<N>(y + int64_t{stream.vector(k)} * N, f);
    }
    fetch(row + kStreamDepth * step, slot);
    slot = after;
  }
  exchange.end();
}

}  // namespace probability::gpu
