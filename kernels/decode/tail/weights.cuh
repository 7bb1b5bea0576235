// The weights of a whole layer as one stream through a ring in shared memory: a warp of its own asks the copy engine
// for pieces of 8 rows and up to 1024 columns, in the order in which the other warps multiply them, across the layer's
// barriers. Every warp multiplies 64 columns of each piece.
#pragma once

#include "kernels/common/gpu/few_rows.cuh"
#include "kernels/common/gpu/tma.cuh"
#include "kernels/decode/tail/plan.h"

namespace decode::cuda {

using namespace kernels::gpu;

__device__ __forceinline__ void sync_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kFewThreads) : "memory"); }

// The tiles of a product that are this block's.
struct Tiles {
  int begin, end;
};
__device__ __forceinline__ Tiles tiles_of(const Product& p) {
  int block = int(blockIdx.x) - p.turn;
  if (block < 0) block += gridDim.x;
  const int begin = block * p.each + min(block, p.more), end = begin + p.each + (block < p.more);
  return {begin << p.paired, end << p.paired};
}

struct Slot {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int pieces) {
    if (++index == pieces) index = 0, parity ^= 1;
  }
};

struct WeightRing {
  uint8_t* data;
  Barrier *full, *empty;
  int pieces;
};

// By one warp.
template <class T>
__device__ __forceinline__ void stream_weights(const Tail& t, const WeightRing& ring) {
  const int lane = threadIdx.x % 32;
  Slot next, landed;
  int issued = 0;
#pragma unroll 1
  for (int product = 0; product < kProducts; ++product) {
    const Product& p = t.products[product];
    const Tiles tiles = tiles_of(p);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      const int which = p.paired & tile, row = (tile >> p.paired) * kPieceRows + lane;
      const char* from = static_cast<const char*>(p.weight[which]) + row * p.stride[which];
      const bool mine = lane < kPieceRows && row < p.wide;
      const uint32_t rows = __popc(__ballot_sync(kAllLanes, mine));
#pragma unroll 1
      for (int column = 0; column < p.in; column += kChunk) {
        const uint32_t bytes = min(kChunk, p.in - column) * sizeof(T);
        ring.empty[next.index].wait(next.parity ^ 1);
        if (issued++ >= t.in_flight) {
          ring.full[landed.index].wait(landed.parity);
          landed.next(ring.pieces);
        }
        if (lane == 0) ring.full[next.index].arrive_expecting(rows * bytes);
        __syncwarp();
        if (mine)
          load_bytes(ring.data + next.index * kPieceBytes + lane * kPieceStride, from + column * sizeof(T), bytes,
                     ring.full[next.index]);
        next.next(ring.pieces);
      }
    }
  }
}

// The output that is this thread's of some tiles: found, and what is added to it loaded, before it is wanted.
template <class T, int kRows>
struct Output {
  static constexpr int kTiles = kRows == 8 ? 8 : 4;  // whose sums meet at once
  static constexpr int kTileSums = kFewWarps * kRows * kFewTile;
  static_assert(kTiles * kTileSums * sizeof(float) == kSumsBytes && kTiles * kRows * kFewTile == kFewThreads);

  T* to;  // null: none
  float bias, up_bias, residual;

  // Tiles from `first` on, of which `end` is the last one's successor.
  __device__ __forceinline__ void find(const Product& p, int rows, int first, int end) {
    const int row = threadIdx.x / kFewTile % kRows;
    const int tile = (first >> p.paired) + int(threadIdx.x) / (kFewTile * kRows);
    const int column = tile * kFewTile + threadIdx.x % kFewTile;
    to = nullptr, bias = up_bias = residual = 0.f;
    if (row >= rows || tile >= min(end, first + kTiles) >> p.paired || column >= p.wide) return;
    const int64_t at = int64_t{row} * p.wide + column;
    to = static_cast<T*>(p.out) + at;
    if (p.bias[0] != nullptr) bias = to_float(static_cast<const T*>(p.bias[0])[column]);
    if (p.bias[1] != nullptr) up_bias = to_float(static_cast<const T*>(p.bias[1])[column]);
    if (p.residual != nullptr) residual = to_float(static_cast<const T*>(p.residual)[at]);
  }
  // From the warps' sums [tile][warp][row][8].
  __device__ __forceinline__ void put(const Product& p, const float* sums, Act act) const {
    if (to == nullptr) return;
    const int in_tile = threadIdx.x % (kFewTile * kRows), tile = (int(threadIdx.x) / (kFewTile * kRows)) << p.paired;
    const auto sum_of = [&](int of) {
      float total = 0.f;
#pragma unroll
      for (int i = 0; i < kFewWarps; ++i) total += sums[of * kTileSums + i * kRows * kFewTile + in_tile];
      return total;
    };
    float v = rounded<T>(sum_of(tile) + bias);
    if (p.paired) {
      const float up = rounded<T>(sum_of(tile + 1) + up_bias);
      v = (act == Act::kSilu ? Silu::value<true>(v) : GeluTanh::value<true>(v)) * up;
    } else if (p.residual != nullptr) {
      v += residual;
    }
    *to = from_float<T>(v);
  }
};

// By the other warps: the product of x in shared memory [rows, in + kFewPad] with this block's tiles. `output` is what
// was found for the first of them.
template <class T, int kRows>
__device__ __forceinline__ void multiply(const Product& p, const Tail& t, const T* x, const WeightRing& ring,
                                         Slot& slot, float* sums, const Tiles tiles, Output<T, kRows> output) {
  using Out = Output<T, kRows>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 8;
  const int rows = t.rows, stride = p.in + kFewPad, own_column = warp * kFewUnit + c;
  // This thread's rows of x, lane / 4 and 8 further on. Behind the last row it is the last one again: what comes of
  // that is never written.
  const T* mine = x + min(g, rows - 1) * stride + own_column;
  const int far = (min(g + 8, rows - 1) - min(g, rows - 1)) * stride;
  const uint8_t* own = ring.data + g * kPieceStride + own_column * sizeof(T);
  float* to = sums + (warp * kRows + g) * kFewTile + lane % 4 * 2;
  for (int tile = tiles.begin; tile < tiles.end;) {
    const int count = min(Out::kTiles, tiles.end - tile);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      float low[4] = {}, high[4] = {};
#pragma unroll 1
      for (int column = 0; column < p.in; column += kChunk) {
        ring.full[slot.index].wait(slot.parity);
        const uint8_t* piece = own + slot.index * kPieceBytes;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool inside = column + own_column + 32 * h < p.in;
          uint4 w = {}, of[2] = {};
          if (inside) w = *reinterpret_cast<const uint4*>(piece + 64 * h);
          if (inside) of[0] = *reinterpret_cast<const uint4*>(mine + column + 32 * h);
          if (kRows == 16 && inside) of[1] = *reinterpret_cast<const uint4*>(mine + far + column + 32 * h);
          const uint32_t first[4] = {of[0].x, of[1].x, of[0].y, of[1].y};
          const uint32_t second[4] = {of[0].z, of[1].z, of[0].w, of[1].w};
          multiply_16x8<T>(low, first, w.x, w.y);
          multiply_16x8<T>(high, second, w.z, w.w);
        }
        __syncwarp();
        if (lane == 0) ring.empty[slot.index].arrive();
        slot.next(ring.pieces);
      }
      float* here = to + i * Out::kTileSums;
      *reinterpret_cast<float2*>(here) = make_float2(low[0] + high[0], low[1] + high[1]);
      if (kRows == 16)
        *reinterpret_cast<float2*>(here + 8 * kFewTile) = make_float2(low[2] + high[2], low[3] + high[3]);
    }
    sync_workers();
    output.put(p, sums, t.act);
    tile += count;
    if (tile == tiles.end) break;
    output.find(p, rows, tile, tiles.end);
    sync_workers();  // the sums have been read
  }
}

}  // namespace decode::cuda
