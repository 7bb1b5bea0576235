// Sorts packed sequences (sequence_order.cuh).
#include "kernels/attention/cuda/launches.cuh"
#include "kernels/attention/cuda/sequence_order.cuh"

namespace attention::gpu {
namespace {

constexpr int kOrderThreads = 1024;

// In the place of value number threadIdx.x the sum of all values to it, and of all.
struct BlockSum {
  int sum, all;
};
__device__ __forceinline__ BlockSum block_sum(int value, int (&warps)[kOrderThreads / 32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto over_lanes = [&](int v) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_up_sync(kAllLanes, v, o);
      if (lane >= o) v += other;
    }
    return v;
  };
  const int sum = over_lanes(value);
  __syncthreads();  // who was here before has read
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  const int to_warp = over_lanes(warps[lane]);
  return {sum + __shfl_sync(kAllLanes, to_warp, (warp + 31) % 32) * (warp > 0), __shfl_sync(kAllLanes, to_warp, 31)};
}

// One block. height: of tiles; width: of what each goes over, whose number is shifted so that few are left.
template <bool kOfKeys>
__global__ void __launch_bounds__(kOrderThreads)
    order_sequences_kernel(const Sequences sequences, const SequenceOrder order, int height, int width, int shift) {
  __shared__ int added[kOrderThreads], warps[kOrderThreads / 32];
  const int thread = threadIdx.x;
  const auto rows_of = [](const Sequence& s) { return max(0, kOfKeys ? s.key_rows : s.query_rows); };
  // By what its longest tile goes over, the most first; last what has no tile.
  const auto rank_of = [&](int b) {
    const Sequence s = sequences.at(b, height);
    const int rows = rows_of(s);
    if (rows == 0) return kOrderThreads - 1;
    int steps;
    if constexpr (kOfKeys) {
      const QueryTiles queries = query_tiles<true>(s.band, 0, height, s.query_rows, width);
      steps = queries.end - queries.first;
    } else {
      const KeyTiles keys = key_tiles<true>(s.band, (rows - 1) / height * height, rows, width);
      steps = keys.end - keys.first;
    }
    return kOrderThreads - 2 - min(kOrderThreads - 2, steps >> shift);
  };
  added[thread] = 0;
  __syncthreads();
  for (int b = thread; b < order.sequences; b += kOrderThreads) atomicAdd(&added[rank_of(b)], 1);
  __syncthreads();
  const int count = added[thread];
  added[thread] = block_sum(count, warps).sum - count;
  __syncthreads();
  for (int b = thread; b < order.sequences; b += kOrderThreads) order.number()[atomicAdd(&added[rank_of(b)], 1)] = b;
  __syncthreads();
  int before = 0;
  for (int first = 0; first < order.sequences; first += kOrderThreads) {
    const int i = first + thread;
    const int tiles =
        i < order.sequences ? (rows_of(sequences.at(order.number()[i], height)) + height - 1) / height : 0;
    const BlockSum sum = block_sum(tiles, warps);
    if (i < order.sequences) order.before()[i] = before + sum.sum - tiles;
    before += sum.all;
  }
  if (thread == 0) *order.claimed() = 0, order.tiles() = before;
}

template <bool kOfKeys>
void order_sequences(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream) {
  int shift = 0;
  while (divide_up(kOfKeys ? p.query_rows : p.key_rows, width) >> shift >= kOrderThreads) ++shift;
  launch(order_sequences_kernel<kOfKeys>, 1, kOrderThreads, stream, sequences_of(p), order, height, width, shift);
}

}  // namespace

void order_by_queries(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream) {
  order_sequences<false>(p, order, height, width, stream);
}
void order_by_keys(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream) {
  order_sequences<true>(p, order, height, width, stream);
}

}  // namespace attention::gpu
