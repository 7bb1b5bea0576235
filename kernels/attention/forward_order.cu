// Sorts packed sequences for the sm_90a forward (forward_order.cuh).
#include "kernels/attention/forward_order.cuh"

#include "kernels/attention/launches.cuh"

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

// One block. height, width: of tiles of rows and of keys; `shift`: of the number of key tiles, so that few are left.
__global__ void __launch_bounds__(kOrderThreads)
    order_sequences_kernel(const Sequences sequences, const SequenceOrder order, int height, int width, int shift) {
  __shared__ int places[kOrderThreads], warps[kOrderThreads / 32];
  const int number = threadIdx.x;
  const auto tiles_of = [&](int b) { return (max(0, sequences.at(b, height).query_rows) + height - 1) / height; };
  // By the key tiles of its last tile of rows, the most first; last what has no rows.
  const auto rank_of = [&](int b) {
    const Sequence s = sequences.at(b, height);
    if (s.query_rows <= 0) return kOrderThreads - 1;
    const int row = (s.query_rows - 1) / height * height;
    const KeyTiles keys = key_tiles<true>(s.band, row, s.query_rows, width);
    return kOrderThreads - 2 - min(kOrderThreads - 2, (keys.end - keys.first) >> shift);
  };
  places[number] = 0;
  __syncthreads();
  for (int b = number; b < order.sequences; b += kOrderThreads) atomicAdd(&places[rank_of(b)], 1);
  __syncthreads();
  const int count = places[number];
  places[number] = block_sum(count, warps).sum - count;
  __syncthreads();
  for (int b = number; b < order.sequences; b += kOrderThreads) order.number()[atomicAdd(&places[rank_of(b)], 1)] = b;
  __syncthreads();
  int before = 0;
  for (int first = 0; first < order.sequences; first += kOrderThreads) {
    const int i = first + number, tiles = i < order.sequences ? tiles_of(order.number()[i]) : 0;
    const BlockSum sum = block_sum(tiles, warps);
    if (i < order.sequences) order.before()[i] = before + sum.sum - tiles;
    before += sum.all;
  }
  if (number == 0) *order.asked() = 0, order.tiles() = before;
}

}  // namespace

void order_sequences(const Problem& p, const SequenceOrder& order, int height, int width, Stream stream) {
  int shift = 0;
  while (divide_up(p.key_rows, width) >> shift >= kOrderThreads) ++shift;
  launch(order_sequences_kernel, 1, kOrderThreads, stream, sequences_of(p), order, height, width, shift);
}

}  // namespace attention::gpu
