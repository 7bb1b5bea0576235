// The products of few_rows.h where x does not fit into registers, on Hopper and later: weights by the copy engine as in
// few_rows_held.cuh, but through a ring of pieces, 8 outputs by 1024 columns, that a warp of its own keeps full; x in
// shared memory as in few_rows.cuh, with the same sums in the same order.
#pragma once

#include "kernels/common/gpu/few_rows_x.cuh"
#include "kernels/common/gpu/tma.cuh"

namespace kernels::gpu {

constexpr int kWideColumns = kFewUnit * kFewWarps;  // of a piece
constexpr int kWideRow = kWideColumns * 2 + 64;     // bytes between its rows in shared memory, against bank conflicts
constexpr int kWidePiece = kFewTile * kWideRow;
constexpr int kWideGroup = 2;                   // tiles whose sums meet at once
constexpr int kWidePieces = 5, kLeastWide = 2;  // on their way: 80 KB, beside which the next launch is set up

__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kFewThreads) : "memory"); }

template <class T, int kRows>
__global__ void __launch_bounds__(kFewThreads + 32, 2)
    few_rows_wide_kernel(const __grid_constant__ FewRows a, const int tiles, const int per_pair, const int pieces,
                         const bool shares_x) {
  constexpr int kTileSums = kFewWarps * kRows * kFewTile;
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ float squares[kFewWarps];
  __shared__ Barrier full[kWidePieces], empty[kWidePieces];
  uint8_t* const ring = raw;
  auto* sums = reinterpret_cast<float*>(raw + pieces * kWidePiece);  // two groups of tiles, that take turns
  auto* shared_x = reinterpret_cast<T*>(sums + 2 * kWideGroup * kTileSums);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 8;
  const int pairs = tiles / per_pair;
  const int begin = int(int64_t{pairs} * blockIdx.x / gridDim.x) * per_pair;
  const int end = int(int64_t{pairs} * (blockIdx.x + 1) / gridDim.x) * per_pair;
  const int units = (a.in + kWideColumns - 1) / kWideColumns;
  const bool asks = warp == kFewWarps;
  if (int(threadIdx.x) < pieces) full[threadIdx.x].init(1), empty[threadIdx.x].init(kFewWarps);
  publish_barriers();
  __syncthreads();

  int tile = begin, unit = 0, slot = 0;
  uint32_t round = 0;
  const FewWeights<T> weights{a, lane};
  const auto ask = [&] {
    const FewTile from = weights.tile(tile);  // a lane asks for a row
    const uint32_t bytes = uint32_t(min(kWideColumns, a.in - unit * kWideColumns)) * sizeof(T);
    const bool mine = lane < kFewTile && from.inside;
    const int rows = __popc(__ballot_sync(kAllLanes, mine));
    if (lane == 0) full[slot].arrive_expecting(bytes * rows);
    __syncwarp();
    if (mine)
      load_bytes(ring + slot * kWidePiece + lane * kWideRow, from.row + unit * kWideColumns * int(sizeof(T)), bytes,
                 full[slot]);
    if (++slot == pieces) slot = 0, ++round;
    if (++unit == units) unit = 0, ++tile;
  };
  // What nobody writes meanwhile is on its way before the launch before this one has ended.
  if (asks && a.weights_are_old)
    while (round == 0 && tile < end) ask();
  const int shared_stride = a.in + kFewPad;
  T* shared_norm = shared_x + a.rows * shared_stride;
  if (a.norm != nullptr && !asks) {
    for (int i = threadIdx.x * 8; i < a.in; i += kFewThreads * 8)
      start_copy(shared_norm + i, static_cast<const T*>(a.norm) + i, false);
    commit_copies();
  }
  wait_for_launch_before();
  next_launch_may_begin();  // not before the wait: what is older than this launch is done when the next one begins
  if (asks && !a.weights_are_old) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    while (round == 0 && tile < end) ask();
  }
  T residual = residual_of<T, kRows>(a, begin, min(end, begin + kWideGroup));
  const T* x = static_cast<const T*>(a.x);
  int stride = int(a.x_stride);
  if (shares_x) {
    if (a.norm != nullptr)
      norm_rows<T>(a, shared_x, shared_stride, shared_norm, squares);
    else if (!asks)
      copy_columns<T>(a, shared_x, shared_stride, units);
    x = shared_x, stride = shared_stride;
  }
  if (asks) {
    while (tile < end) {
      if (round > 0) empty[slot].wait((round - 1) & 1);
      ask();
    }
    return;
  }

  const T* mine = x + int64_t{min(g, a.rows - 1)} * stride + c;  // and 8 rows further on, as in few_rows.cuh
  const int far = (min(g + 8, a.rows - 1) - min(g, a.rows - 1)) * (stride / 8);
  const uint8_t* at = ring + g * kWideRow + (warp * kFewUnit + c) * int(sizeof(T));
  float d[4] = {};
  int in_group = 0, turn = 0;
  uint32_t parity = 0;
#pragma unroll 1
  while (tile < end) {
#pragma unroll 1
    for (unit = 0; unit < units; ++unit) {
      const int column = unit * kWideColumns + warp * kFewUnit;
      uint4 rows[2][2] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (column + 32 * h + c >= a.in) continue;
        rows[h][0] = *reinterpret_cast<const uint4*>(mine + column + 32 * h);
        if (kRows == 16) rows[h][1] = reinterpret_cast<const uint4*>(mine + column + 32 * h)[far];
      }
      full[slot].wait(parity);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint4 w = make_uint4(0, 0, 0, 0);
        if (column + 32 * h + c < a.in) w = *reinterpret_cast<const uint4*>(at + slot * kWidePiece + 64 * h);
        const uint32_t low[4] = {rows[h][0].x, rows[h][1].x, rows[h][0].y, rows[h][1].y};
        const uint32_t high[4] = {rows[h][0].z, rows[h][1].z, rows[h][0].w, rows[h][1].w};
        multiply_16x8<T>(d, low, w.x, w.y);
        multiply_16x8<T>(d, high, w.z, w.w);
      }
      __syncwarp();
      if (lane == 0) empty[slot].arrive();
      if (++slot == pieces) slot = 0, parity ^= 1;
    }
    float* to = sums + (turn * kWideGroup + in_group) * kTileSums + (warp * kRows + g) * kFewTile + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = make_float2(d[0], d[1]);
    if (kRows == 16) *reinterpret_cast<float2*>(to + 8 * kFewTile) = make_float2(d[2], d[3]);
    d[0] = d[1] = d[2] = d[3] = 0.f;
    ++tile;
    if (++in_group < kWideGroup && tile < end) continue;
    consumers_meet();  // and the other turn's sums have been read: everybody was past them before it came here
    few_outputs<T, kRows>(a, sums + turn * kWideGroup * kTileSums, tile - in_group, in_group, residual);
    residual = residual_of<T, kRows>(a, tile, min(end, tile + kWideGroup));
    in_group = 0, turn ^= 1;
  }
}

template <class T, int kRows>
void launch_few_rows_wide(const FewRows& a, Stream stream) {
  constexpr int64_t kSums = 2 * kWideGroup * kFewWarps * kRows * kFewTile * int64_t{sizeof(float)}, kStatic = 1 << 10;
  const int tiles = few_rows_tiles(a), per_pair = a.act == FewRowsAct::kNone ? 1 : 2;
  const int blocks = tiles / per_pair < multiprocessors() ? tiles / per_pair : multiprocessors();
  const int64_t besides = few_rows_x_bytes(a) + kSums;
  const int64_t fit = (attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() - kStatic - besides) / kWidePiece;
  const int pieces = fit < kWidePieces ? int(fit) : kWidePieces;
  launch_after_with_memory<few_rows_wide_kernel<T, kRows>, /*kMostShared=*/true>(
      pieces * kWidePiece + besides, blocks, kFewThreads + 32, /*cluster=*/1, stream, a, tiles, per_pair, pieces,
      few_rows_shares_x(a));
}

}  // namespace kernels::gpu
