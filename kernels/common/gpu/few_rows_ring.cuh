// The products of few_rows.h of up to 8 rows where x does not fit into registers: wide layers, whose weights are what a
// step waits for. A block's weights come by the copy engine through a ring of pieces in shared memory, which a warp of
// its own keeps full; the other 16 share the columns of each piece. x lies in shared memory, normed or as it is.
//
// An mma takes 16 rows of x and 8 outputs' weights. Its rows here are 8 of x twice, with the even 32 columns and with
// the odd ones, and its columns 4 outputs' weights by the same two; the sums of like with like are kept. So a tile has
// 4 outputs, and a piece of 16 KB rows of 4 KB: a copy costs the warp that asks for it as much as 2 KB cost the memory.
#pragma once

#include "kernels/common/gpu/few_rows_held.cuh"
#include "kernels/common/gpu/few_rows_x.cuh"
#include "kernels/common/gpu/tma.cuh"

namespace kernels::gpu {

constexpr int kRingRows = 8, kRingTile = 4;
constexpr int kRingLoads = 2;                                                                 // of a thread of a piece
constexpr int kRingColumns = kRingLoads * kFewUnit * kFewWarps, kRingRow = kRingColumns * 2;  // of a piece; bytes
constexpr int kRingPiece = kRingTile * kRingRow;
constexpr int kLeastPieces = 4, kMostPieces = 8;

// The 16 warps that multiply.
__device__ __forceinline__ void few_warps_meet() { asm volatile("bar.sync 1, %0;" ::"n"(kFewThreads) : "memory"); }

// Which piece of a block's weights is asked for, by one thread. What it takes to know the next is done before that is
// waited for.
template <class T, bool kWhole>
struct RingPiece {
  const FewRows& a;
  const int per_pair, units;  // units: pieces of a tile
  int tile, left, unit = 0, rows = 0;
  uint32_t bytes = 0;  // of a row
  int64_t stride = 0;
  const char* from = nullptr;

  __device__ __forceinline__ RingPiece(const FewRows& args, int tiles_of_pair, int pieces, int pairs)
      : a(args), per_pair(tiles_of_pair), units(pieces), tile(int(blockIdx.x) * tiles_of_pair) {
    left = (pairs - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * per_pair * units;
    find();
  }
  __device__ __forceinline__ void find() {
    if (unit == 0) {
      int which = 0, first = tile * kRingTile;
      if (per_pair == 2)
        which = tile & 1, first = (tile >> 1) * kRingTile;
      else
        while (which + 1 < a.weights && first >= few_tiles<kRingTile>(a.w[which].rows) * kRingTile)
          first -= few_tiles<kRingTile>(a.w[which].rows) * kRingTile, ++which;
      const FewRowsWeight& w = a.w[which];
      rows = min(kRingTile, w.rows - first);
      stride = w.stride * int64_t{sizeof(T)};
      from = static_cast<const char*>(w.data) + first * stride;
    }
    bytes = kWhole ? kRingRow : uint32_t(min(kRingColumns, a.in - unit * kRingColumns)) * sizeof(T);
  }
  __device__ __forceinline__ void next() {
    from += kRingRow;
    if (++unit == units) {
      unit = 0;
      if (++tile % per_pair == 0) tile += (int(gridDim.x) - 1) * per_pair;
    }
    if (--left > 0) find();
  }
  __device__ __forceinline__ void prefetch() const {
    for (int r = 0; r < rows; ++r) prefetch_bytes(from + r * stride, bytes);
  }
  __device__ __forceinline__ void load(uint8_t* to, Barrier& full) const {
    full.arrive_expecting(bytes * rows);
#pragma unroll
    for (int r = 0; r < kRingTile; ++r)
      if (r < rows) load_bytes(to + r * kRingRow, from + r * stride, bytes, full);
  }
};

// kWhole: rows are whole pieces long.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kFewThreads + 32, 1)
    few_rows_ring_kernel(const __grid_constant__ FewRows a, const int tiles, const int per_pair, const int pieces) {
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ float squares[kFewWarps];
  __shared__ Barrier full[kMostPieces], empty[kMostPieces];
  uint8_t* const ring = raw;
  const int tile_sums = kFewWarps * a.rows * kRingTile;
  auto* sums = reinterpret_cast<float*>(raw + pieces * kRingPiece);  // two tiles or pairs of them, that take turns
  auto* x = reinterpret_cast<T*>(sums + 2 * 2 * tile_sums);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 8;
  const int pairs = tiles / per_pair;
  const int units = (a.in + kRingColumns - 1) / kRingColumns;

  if (warp == kFewWarps) {
    if (lane < pieces) full[lane].init(1), empty[lane].init(kFewWarps);
    publish_barriers();
    __syncthreads();
    if (lane > 0) return;
    RingPiece<T, kWhole> piece(a, per_pair, units, pairs);
    int slot = 0;
    uint32_t round = 0;
    const auto ask = [&] {
      piece.load(ring + slot * kRingPiece, full[slot]);
      piece.next();
      if (++slot == pieces) slot = 0, ++round;
    };
    if (a.weights_are_old) {
      while (round == 0 && piece.left > 0) ask();
    } else {  // of what may be written meanwhile no more than into L2, which is where such writes go
      RingPiece<T, kWhole> ahead(a, per_pair, units, pairs);
      for (int i = 0; i < pieces && ahead.left > 0; ++i) ahead.prefetch(), ahead.next();
    }
    wait_for_launch_before();
    next_launch_may_begin();  // not before the wait: what is older than this launch is done when the next one begins
    if (!a.weights_are_old) asm volatile("fence.proxy.async.global;" ::: "memory");
    while (piece.left > 0) {
      if (round > 0) empty[slot].wait((round - 1) & 1);
      ask();
    }
    return;
  }

  if (a.norm != nullptr && threadIdx.x * 64 < unsigned(a.in))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const T*>(a.norm) + threadIdx.x * 64));
  __syncthreads();
  wait_for_launch_before();
  const int stride = a.in + kFewPad;
  if (a.norm != nullptr)
    norm_rows<T, true>(a, x, stride, static_cast<const T*>(a.norm), squares, few_warps_meet);
  else
    copy_columns<T>(a, x, stride, units * kRingLoads);

  // This thread's row of x. Behind the last row it is the last one again: what comes of that is never written.
  const T* mine = x + min(g, a.rows - 1) * stride;
  const uint8_t* weights = ring + g / 2 * kRingRow;
  int turn = 0, slot = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int pair = blockIdx.x; pair < pairs; pair += gridDim.x, turn ^= 1) {
    const int first = pair * per_pair;
    const T residual = residual_of<T, kRingRows, kRingTile>(a, first, first + per_pair);
    float* const of_turn = sums + turn * 2 * tile_sums;
#pragma unroll 1
    for (int t = 0; t < per_pair; ++t) {
      float d[4] = {};
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) {
        full[slot].wait(parity);
#pragma unroll
        for (int l = 0; l < kRingLoads; ++l) {
          const int inside = (l * kFewWarps + warp) * kFewUnit + c, column = unit * kRingColumns + inside;
          const int half = g % 2 * 32;
          uint4 even = make_uint4(0, 0, 0, 0), odd = even, w = even;
          if (kWhole || column < a.in) even = *reinterpret_cast<const uint4*>(mine + column);
          if (kWhole || column + 32 < a.in) odd = *reinterpret_cast<const uint4*>(mine + column + 32);
          if (kWhole || column + half < a.in)
            w = *reinterpret_cast<const uint4*>(weights + slot * kRingPiece + (inside + half) * sizeof(T));
          const uint32_t low[4] = {even.x, odd.x, even.y, odd.y}, high[4] = {even.z, odd.z, even.w, odd.w};
          multiply_16x8<T>(d, low, w.x, w.y);
          multiply_16x8<T>(d, high, w.z, w.w);
        }
        __syncwarp();
        if (lane == 0) empty[slot].arrive();
        if (++slot == pieces) slot = 0, parity ^= 1;
      }
      // d[0]: even columns of x by even ones of output lane % 4's weights; d[3]: odd by odd.
      if (g < a.rows) of_turn[t * tile_sums + (warp * a.rows + g) * kRingTile + lane % 4] = d[0] + d[3];
    }
    few_warps_meet();  // and the other turn's sums have been read: everybody was past them before it came here
    few_outputs<T, kRingRows, kRingTile>(a, of_turn, a.rows, first, per_pair, residual);
  }
}

inline int64_t ring_bytes(const FewRows& a, int pieces) {
  return int64_t{pieces} * kRingPiece + few_rows_x_bytes(a) +
         2 * 2 * kFewWarps * a.rows * kRingTile * int64_t{sizeof(float)};
}
// Pieces of a block's ring, 0 where x leaves too few.
inline int ring_pieces(const FewRows& a) {
  constexpr int64_t kMost = (227 << 10) - 512;  // of a block, less what is static
  const int64_t pieces = (kMost - ring_bytes(a, 0)) / kRingPiece;
  return pieces < kLeastPieces ? 0 : pieces < kMostPieces ? int(pieces) : kMostPieces;
}

// Of those that holds_x() says no to.
inline bool takes_ring(const FewRows& a) {
  return a.rows <= kRingRows && !a.through_l1 && weights_pass_l1() && ring_pieces(a) > 0;
}

template <class T>
void launch_few_rows_ring(const FewRows& a, Stream stream) {
  const int tiles = few_rows_tiles<kRingTile>(a), per_pair = a.act == FewRowsAct::kNone ? 1 : 2;
  const int blocks = tiles / per_pair < multiprocessors() ? tiles / per_pair : multiprocessors();
  const int pieces = ring_pieces(a);
  const auto run = [&]<bool kWhole>() {
    launch_after_with_memory<few_rows_ring_kernel<T, kWhole>, /*kMostShared=*/true>(
        ring_bytes(a, pieces), blocks, kFewThreads + 32, /*cluster=*/1, stream, a, tiles, per_pair, pieces);
  };
  a.in % kRingColumns == 0 ? run.template operator()<true>() : run.template operator()<false>();
}

}  // namespace kernels::gpu
