// The products of few_rows.h where each thread's part of x fits into its registers: narrow layers, whose products take
// a few microseconds, most of them latency of what a warp goes through once. So x goes from memory to the mma's operand
// without a stop, a norm takes one barrier, and little is written more than once: code is fetched, too. Weights come by
// TMA into shared memory: loads into registers are held up by L1, which is small beside kernels that want
// much shared memory, and a multiprocessor that has to change how it splits the two must be idle first.
#pragma once

#include "kernels/common/gpu/gemv/few_rows_parts.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"

namespace kernels::gpu {

// kPair: gate and up. kTiles: those whose sums meet at once. turns: 1 if they are all that a block has, or 2, in shared
// memory by turns.
template <class T, int kRows, int kUnits, bool kNorm, bool kPair, int kTiles>
__global__ void __launch_bounds__(kFewThreads, 2)
    few_rows_held_kernel(const __grid_constant__ FewRows a, const int tiles, const int turns) {
  // ---- prologue: the tiles of this block, shared memory by name
  constexpr int kPerPair = kPair ? 2 : 1;
  // Tiles of old weights that are asked for before x: more of them keep x waiting, which 16 rows mind less.
  constexpr int kEarly = kPair ? (kRows == 8 ? 2 : 2 * kTiles) : kNorm ? 1 : 2 * kTiles;
  constexpr int kHalves = kRows / 8, kTileSums = kFewWarps * kRows * kFewTile;
  static_assert(kTiles % kPerPair == 0 && kTiles / kPerPair * kRows * kFewTile <= kFewThreads);
  extern __shared__ __align__(16) uint8_t raw[];
  __shared__ __align__(16) float squares[kNorm ? kRows : 1][kFewWarps];
  __shared__ Mbarrier full[2 * kTiles];
  const int tile_bytes = kFewTile * a.in * int(sizeof(T));
  uint8_t* ring = raw;  // [turns][kTiles] tiles
  auto* sums = reinterpret_cast<float*>(raw + turns * kTiles * tile_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 8;
  const int pairs = tiles / kPerPair;
  const int each = pairs / int(gridDim.x), more = pairs % int(gridDim.x), block = int(blockIdx.x);
  const int begin = (each * block + min(block, more)) * kPerPair;
  const int end = begin + (each + (block < more)) * kPerPair;

  // ---- producer: one lane a tile starts the copy of its weights
  // Where tile begin + i lies; no rows: there is none.
  struct Tile {
    const T* from;
    int rows, which;
  };
  const auto tile_at = [&](int i) -> Tile {
    if (begin + i >= end) return {nullptr, 0, 0};
    int which = 0, first = (begin + i) * kFewTile;
    if constexpr (kPair)
      which = (begin + i) & 1, first = ((begin + i) >> 1) * kFewTile;
    else
      while (which + 1 < a.weights && first >= FewWeights<T>::few_tiles(a.w[which].rows) * kFewTile)
        first -= FewWeights<T>::few_tiles(a.w[which].rows) * kFewTile, ++which;
    const FewRowsWeight& w = a.w[which];
    return {static_cast<const T*>(w.data) + first * w.stride, min(kFewTile, w.rows - first), which};
  };
  // A lane of the first warp asks for it, into shared memory or only into L2.
  const auto issue = [&](const Tile& tile, int slot, bool only_l2) {
    if (tile.rows == 0) return;
    const int64_t stride = a.w[tile.which].stride;
    const bool whole = stride == a.in;
    const uint32_t bytes = uint32_t(a.in) * sizeof(T) * (whole ? tile.rows : 1);
    if (!only_l2) full[slot].arrive_expect_tx(uint32_t(a.in) * sizeof(T) * tile.rows);
#pragma unroll 1
    for (int r = 0; r < (whole ? 1 : tile.rows); ++r) {
      if (only_l2)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(tile.from + r * stride), "r"(bytes));
      else
        bulk_load(ring + slot * tile_bytes + r * a.in * sizeof(T), tile.from + r * stride, bytes, full[slot]);
    }
  };
  // The first ones, a lane each. Of 8 rows where they lie is known before the wait; 16 rows' x comes before them
  // rather.
  Tile mine_first{};
  if (kRows == 8 && warp == 0 && lane < turns * kTiles) mine_first = tile_at(lane);
  const auto issue_first = [&](bool only_l2) {
    if (lane < turns * kTiles) issue(kRows == 8 ? mine_first : tile_at(lane), lane, only_l2);
  };

  // ---- prologue: barriers, the first weights, then what the previous kernel wrote: x in registers, normed
  if (threadIdx.x < 2 * kTiles) full[threadIdx.x].init(1);
  if (warp == 0) {
    fence_mbarrier_init();
    __syncwarp();
    // Of what may be written meanwhile no more than into L2, which is where such writes go.
    if (!a.weights_are_old || lane < kEarly) issue_first(!a.weights_are_old);
  }
  if (kNorm && threadIdx.x * 64 < unsigned(a.in))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const T*>(a.norm) + threadIdx.x * 64));
  __syncthreads();
  grid_dependency_wait();
  launch_dependents();  // not before the wait: what is older than this launch is done when the next one begins

  uint4 x[kUnits][2][kHalves], norm[kNorm ? kUnits : 1][2];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = (u * kFewWarps + warp) * kFewUnit + 32 * h + c;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        // Behind the last row it is the last one again: what comes of that is never written.
        const int64_t row = min(g + 8 * half, a.rows - 1);
        x[u][h][half] = make_uint4(0, 0, 0, 0);
        if (column < a.in)
          x[u][h][half] = *reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + row * a.x_stride + column);
      }
      if constexpr (kNorm) {
        norm[u][h] = make_uint4(0, 0, 0, 0);
        if (column < a.in) norm[u][h] = *reinterpret_cast<const uint4*>(static_cast<const T*>(a.norm) + column);
      }
    }
  }
  if (warp == 0) {
    if (!a.weights_are_old) fence_proxy_async_global();
    if (!a.weights_are_old || lane >= kEarly) issue_first(false);
    __syncwarp();
  }
  if constexpr (kNorm) {
    const auto numbers = [](const uint4& v, float(&f)[8]) { unpack(Pack<T, 8>{{v.x, v.y, v.z, v.w}}, f); };
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float sum = 0.f;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float f[8];
          numbers(x[u][h][half], f);
#pragma unroll
          for (int i = 0; i < 8; ++i) sum += f[i] * f[i];
        }
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (lane % 4 == 0) squares[g + 8 * half][warp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < kFewWarps / 4; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(&squares[g + 8 * half][4 * i]);
        sum += (four.x + four.y) + (four.z + four.w);
      }
      const float rstd = rsqrtf(sum / float(a.in) + a.eps);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float f[8], w[8];
          numbers(x[u][h][half], f), numbers(norm[u][h], w);
#pragma unroll
          for (int i = 0; i < 8; ++i) f[i] = rounded<T>(f[i] * rstd) * w[i];
          const Pack<T, 8> normed = pack<T>(f);
          x[u][h][half] = make_uint4(normed.w[0], normed.w[1], normed.w[2], normed.w[3]);
        }
      }
    }
  }

  // ---- consumer: each warp multiplies its columns of the tiles of a turn
  const FewOutput<kRows> mine;
  T* out = static_cast<T*>(a.out) + mine.row * a.out_stride;
  uint32_t parity = 0;
#pragma unroll 1
  for (int tile = begin, turn = 0; tile < end; tile += kTiles) {
    // This thread's output of these tiles, if it has one.
    int which = 0, at = (tile / 2 + mine.tile) * kFewTile + mine.column, in_weight = at;
    if constexpr (kPair) {
      if (mine.row >= a.rows || mine.tile >= kTiles / 2 || tile + 2 * mine.tile >= end || at >= a.w[0].rows) at = -1;
    } else {
      at = mine.tile < kTiles ? output_place<T, kRows>(a, tile, end, which, in_weight) : -1;
    }
    const bool adds = !kPair && at >= 0 && a.residual != nullptr;
    T residual{};
    if (adds) residual = static_cast<const T*>(a.residual)[mine.row * a.residual_stride + at];

    float* of_turn = sums + turn * kTiles * kTileSums;
    float* to = of_turn + (warp * kRows + g) * kFewTile + lane % 4 * 2;
    const uint8_t* weights = ring + turn * kTiles * tile_bytes + g * a.in * int(sizeof(T));
#pragma unroll 1
    for (int t = 0; t < kTiles && tile + t < end; ++t, weights += tile_bytes) {
      full[turn * kTiles + t].wait(parity);
      float d[4] = {};
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = (u * kFewWarps + warp) * kFewUnit + 32 * h + c;
          const uint4 near = x[u][h][0], far = kHalves == 2 ? x[u][h][kHalves - 1] : make_uint4(0, 0, 0, 0);
          uint4 w = make_uint4(0, 0, 0, 0);
          if (column < a.in) w = *reinterpret_cast<const uint4*>(weights + column * sizeof(T));
          const uint32_t low[4] = {near.x, far.x, near.y, far.y}, high[4] = {near.z, far.z, near.w, far.w};
          mma_m16n8k16<T>(d, low, w.x, w.y);
          mma_m16n8k16<T>(d, high, w.z, w.w);
        }
      }
      *reinterpret_cast<float2*>(to + t * kTileSums) = make_float2(d[0], d[1]);
      if (kRows == 16) *reinterpret_cast<float2*>(to + t * kTileSums + 8 * kFewTile) = make_float2(d[2], d[3]);
    }
    __syncthreads();  // and the other turn's sums have been read: everybody was past them before it came here
    if (turns == 2 && threadIdx.x < kTiles)
      issue(tile_at(tile - begin + 2 * kTiles + threadIdx.x), turn * kTiles + threadIdx.x, false);

    // ---- epilogue of a turn: the warps' sums, bias, activation or residual
    if (at >= 0) {
      if constexpr (kPair) {
        const float* gates = of_turn + 2 * mine.tile * kTileSums;
        const float gate = rounded<T>(biased<T>(a.w[0], few_sum<T, kRows>(gates, mine.row, mine.column), at));
        const float up = rounded<T>(biased<T>(a.w[1], few_sum<T, kRows>(gates + kTileSums, mine.row, mine.column), at));
        const float act = a.act == FewRowsAct::kSilu ? Silu::value<true>(gate) : GeluTanh::value<true>(gate);
        out[at] = from_float<T>(act * up);
      } else {
        float v = few_sum<T, kRows>(of_turn + mine.tile * kTileSums, mine.row, mine.column);
        v = biased<T>(a.w[which], v, in_weight);
        if (adds) v = to_float(residual) + rounded<T>(v);
        out[at] = from_float<T>(v);
      }
    }
    if (++turn == 2) turn = 0, parity ^= 1;
  }
}

inline bool holds_x(const FewRows& a) { return attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 && keeps_x(a); }

template <class T, int kRows>
void launch_few_rows_held(const FewRows& a, Stream stream) {
  const int tiles = few_rows_tiles(a), per_pair = a.act == FewRowsAct::kNone ? 1 : 2;
  if (tiles == 0) return;
  // Where there is much to read two blocks share a multiprocessor: one multiplies while the other's weights come.
  constexpr int kMuch = 32;
  const bool much =
      kRows == 8 && per_pair == 1 && a.norm == nullptr && few_rows_units(a) == 1 && tiles >= kMuch * multiprocessors();
  const int places = (much ? 2 : 1) * multiprocessors();
  const int blocks = tiles / per_pair < places ? tiles / per_pair : places;
  const int64_t most = divide_up(tiles / per_pair, blocks) * per_pair;  // tiles of a block
  const auto run = [&]<int kUnits, bool kNorm, bool kPair, int kTiles>() {
    const int turns = most > kTiles ? 2 : 1;
    const int64_t bytes = turns * kTiles * kFewTile * (int64_t{a.in} * 2 + kFewWarps * kRows * int64_t{sizeof(float)});
    launch_after_with_memory<few_rows_held_kernel<T, kRows, kUnits, kNorm, kPair, kTiles>, /*kMaxShared=*/true>(
        bytes, blocks, kFewThreads, /*cluster=*/1, stream, a, tiles, turns);
  };
  const int units = few_rows_units(a);
  const bool norm = a.norm != nullptr;
  const auto with_norm = [&]<int kUnits, bool kPair, int kTiles>() {
    if constexpr (kUnits == 1 || kRows == 8) {
      if (norm) return run.template operator()<kUnits, true, kPair, kTiles>();
    }
    run.template operator()<kUnits, false, kPair, kTiles>();
  };
  const bool pair = per_pair == 2;
  if (units == 1 && pair && most <= 6) return with_norm.template operator()<1, true, 6>();
  if constexpr (kRows == 8) {
    if (much) return run.template operator()<1, false, false, 2>();
  }
  if (units == 1)
    return pair ? with_norm.template operator()<1, true, 4>() : with_norm.template operator()<1, false, 4>();
  if (units == 2)
    return pair ? with_norm.template operator()<2, true, 2>() : with_norm.template operator()<2, false, 2>();
  run.template operator()<3, false, false, 1>();
}

}  // namespace kernels::gpu
