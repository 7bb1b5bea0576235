// Gradients of weights by wgmma (sm_90a): sums over an expert's slots, so that both operands lie with the slots as
// rows. The tokens' rows are A and are gathered by cp.async; the other one, in the order of slots, is B and comes by
// TMA.
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/moe/cuda/sm90_rows.cuh"

namespace moe::cuda {
namespace {

using namespace moe::gpu;

struct WeightArguments {
  CUtensorMap flat_map;
  const void *tokens, *flat;
  void* dw;
  const int32_t *order, *offsets;
  Divider token_of;
  uint32_t token_vectors;  // of 16 bytes from a token's row to the next one's
  int token_cols, flat_cols, row_tiles, col_tiles, tiles;
};

struct WeightTile {
  int expert, row, col, begin, end;  // columns of the tokens' rows, of the others; slots

  __device__ __forceinline__ WeightTile(const WeightArguments& a, int t) : expert(t / (a.row_tiles * a.col_tiles)) {
    const TilePlace at = place_of(t - expert * a.row_tiles * a.col_tiles, a.row_tiles, a.col_tiles, kTilesTogether);
    row = at.row * kRows, col = at.col * kCols;
    begin = a.offsets[expert], end = a.offsets[expert + 1];
  }
};

// A block's steps: 64 slots of a tile each, tile after tile.
struct WeightSteps {
  const WeightArguments& a;
  int number;  // of the tile
  WeightTile tile;
  int slot;

  __device__ __forceinline__ explicit WeightSteps(const WeightArguments& arguments)
      : a(arguments), number(blockIdx.x), tile(arguments, blockIdx.x), slot(tile.begin) {
    skip();
  }
  __device__ __forceinline__ bool left() const { return number < a.tiles; }
  __device__ __forceinline__ void next() {
    slot += kDepth;
    skip();
  }

 private:
  __device__ __forceinline__ void skip() {  // over what has no slots
    while (slot >= tile.end && (number += gridDim.x) < a.tiles) tile = WeightTile(a, number), slot = tile.begin;
  }
};

// Where the 16 rows lie that a warp copies in a step: each lane asks for one of them, a step ahead, and the others have
// it by a shuffle. All else that a copy's addresses need stays the same from step to step: a warp has a scheduler for
// itself and takes as long for a step's instructions as the tensor cores for its products, if there are three hundred.
struct RowPlaces {
  static constexpr uint32_t kNowhere = ~0u;
  const WeightArguments& a;
  const int own;  // of the step's 64 slots
  int order;      // of it, or -1

  __device__ __forceinline__ RowPlaces(const WeightArguments& arguments, int warp, int lane)
      : a(arguments), own(2 * warp + lane % 2 + lane / 2 % 8 * 8) {}
  __device__ __forceinline__ void ask(const WeightSteps& step) {
    const int slot = step.slot + own;
    order = step.left() && slot < step.tile.end ? a.order[slot] : -1;
  }
  __device__ __forceinline__ uint32_t vectors() const {  // before the row
    return order < 0 ? kNowhere : a.token_of(order) * a.token_vectors;
  }
};

template <class T>
__device__ __forceinline__ void load_steps(const WeightArguments& a, Memory<T>& m) {
  constexpr int kPieces = kRows / 8, kEach = kDepth * kPieces / kWarpgroup;  // of 16 bytes: a row's, a thread's
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = lane / kPieces, piece = lane % kPieces;
  const int first = 2 * warp + half;  // a thread's rows are 8 apart
  const int place = piece / 8 * kPanelNumbers + first * 64 + (piece % 8 ^ first) * 8;
  Loader<T> loader(m);
  WeightSteps step(a);
  RowPlaces rows(a, warp, lane);
  rows.ask(step);
  while (step.left()) {
    const int slot = step.slot, end = step.tile.end, row = step.tile.row + piece * 8, col = step.tile.col;
    const uint32_t vectors = rows.vectors();
    step.next();
    rows.ask(step);
    loader.begin();
    const int stage = loader.stage.index;
    const bool inside = row < a.token_cols;
    const T* from = static_cast<const T*>(a.tokens) + (inside ? row : 0);
    T* to = m.a[stage] + place;
    if (slot + kDepth <= end) {
      if (threadIdx.x == 0) {
        m.full[stage].arrive_expect_tx(sizeof m.b[0]);
#pragma unroll
        for (int p = 0; p < kCols / 64; ++p)
          tma_load(m.b[stage] + p * kPanelNumbers, a.flat_map, m.full[stage], col + 64 * p, slot, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        cp_async(to + i * 8 * 64, from + uint64_t{__shfl_sync(kAllLanes, vectors, 2 * i + half)} * 8, !inside);
    } else {  // behind an expert's last slot are another's elements: zeros, since infinity times 0 is none
      if (threadIdx.x == 0) m.full[stage].arrive();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const uint32_t before = __shfl_sync(kAllLanes, vectors, 2 * i + half);
        const bool zeros = before == RowPlaces::kNowhere || !inside;
        cp_async(to + i * 8 * 64, zeros ? from : from + uint64_t{before} * 8, zeros);
      }
      const T* flat = static_cast<const T*>(a.flat) + int64_t{slot} * a.flat_cols + col + lane * 8;
      const bool there = col + lane * 8 < a.flat_cols;
#pragma unroll 4
      for (int at = warp; at < kDepth; at += kWarpgroup / 32) {
        const bool zeros = !there || slot + at >= end;
        cp_async(m.b[stage] + lane / 8 * kPanelNumbers + at * 64 + (lane % 8 ^ at % 8) * 8,
                 zeros ? a.flat : flat + int64_t{at} * a.flat_cols, zeros);
      }
    }
    loader.end();
  }
}

// kTransposed: dw is [flat columns, tokens' columns].
template <class T, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1) multiply_weights(const __grid_constant__ WeightArguments a) {
#if MOE_HOPPER_CODE
  auto& m = begin_block<T>(a.flat_map);
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<kLoaderRegisters>();
    load_steps<T>(a, m);
  } else {
    setmaxnreg_inc<kWorkerRegisters>();
    Worker<T, true, true> worker(m);
    for (int t = blockIdx.x; t < a.tiles; t += gridDim.x) {
      const WeightTile tile(a, t);
      const int steps = (tile.end - tile.begin + kDepth - 1) / kDepth;
      worker.multiply_steps(steps);
      if (steps == 0) {
#pragma unroll
        for (float& s : worker.sums) s = 0.f;
      }
      T* dw = static_cast<T*>(a.dw) + int64_t{tile.expert} * a.token_cols * a.flat_cols;
      const int rows = a.token_cols - tile.row, cols = a.flat_cols - tile.col;
      if constexpr (kTransposed)
        worker.store_transposed(dw + int64_t{tile.col} * a.token_cols + tile.row, a.token_cols, rows, cols);
      else
        worker.store(dw + int64_t{tile.row} * a.flat_cols + tile.col, a.flat_cols, rows, cols);
    }
  }
#endif
}

TensorShape flat_shape(const Problem& p, const Source& s) {
  return {.data = s.data,
          .size = {s.cols, p.assignments(), 1, 1},
          .stride = {1, s.stride, s.stride, s.stride},
          .dtype = p.dtype};
}

template <class T, bool kTransposed>
void launch_weights(const WeightGradient& a, Stream stream) {
  const Source &tokens = kTransposed ? a.right : a.left, &flat = kTransposed ? a.left : a.right;
  const int64_t row_tiles = divide_up(tokens.cols, kRows), col_tiles = divide_up(flat.cols, kCols);
  const int64_t tiles = a.p.experts * row_tiles * col_tiles;
  const WeightArguments arguments{.flat_map = tensor_map(flat_shape(a.p, flat), kDepth),
                                  .tokens = tokens.data,
                                  .flat = flat.data,
                                  .dw = a.dw,
                                  .order = a.index.order,
                                  .offsets = a.index.offsets,
                                  .token_of = Divider(a.p.top_k),
                                  .token_vectors = uint32_t(tokens.stride / 8),
                                  .token_cols = int(tokens.cols),
                                  .flat_cols = int(flat.cols),
                                  .row_tiles = int(row_tiles),
                                  .col_tiles = int(col_tiles),
                                  .tiles = int(tiles)};
  launch_with_memory<&multiply_weights<T, kTransposed>>(kMemoryBytes<T>, std::min<int64_t>(tiles, multiprocessors()),
                                                        kThreads, stream, arguments);
}

}  // namespace

bool hopper_takes(const WeightGradient& a) {
  const Source &tokens = a.left.tokens ? a.left : a.right, &flat = a.left.tokens ? a.right : a.left;
  return has_hopper(a.p) && a.left.tokens != a.right.tokens && fits_tensor_map(flat_shape(a.p, flat)) &&
         a.p.tokens * (tokens.stride / 8) < RowPlaces::kNowhere &&
         aligned({a.left.data, a.right.data, a.dw}, {a.left.stride, a.left.cols, a.right.stride, a.right.cols});
}

void multiply_hopper(const WeightGradient& a, Stream stream) {
  with_half(a.p.dtype, [&]<typename T>() {
    a.left.tokens ? launch_weights<T, false>(a, stream) : launch_weights<T, true>(a, stream);
  });
}

}  // namespace moe::cuda
