// Grouped products by wgmma (sm_90a).
#include "kernels/moe/hopper_rows.cuh"

namespace moe::gpu {
void up_swiglu(const cuda::Product& a, void* activated, Stream stream);
void up_swiglu_oai(const cuda::Product& a, void* activated, Stream stream);
}  // namespace moe::gpu

namespace moe::cuda {
namespace {

using namespace moe::gpu;

template <class T, bool kByInputs>
__global__ void __launch_bounds__(kThreads, 1) multiply_rows(const __grid_constant__ RowArguments a) {
#if MOE_HOPPER_CODE
  auto& m = begin_block<T>(a.w);
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    load_rows<T, kByInputs, Columns::kPlain>(a, m);
  } else {
    take_registers<kWorkerRegisters>();
    Worker<T, false, kByInputs> worker(m);
    Walk<Columns::kPlain> walk(a);
    RowTile tile;
    int col;
    for (int t = blockIdx.x; walk.find(t, tile, col); t += gridDim.x) {
      worker.multiply_steps((a.in + kDepth - 1) / kDepth);
      if (a.bias != nullptr)
        worker.add_bias(static_cast<const T*>(a.bias) + int64_t{tile.expert} * a.out + col, a.out - col, 0, 128);
      worker.store(static_cast<T*>(a.y) + int64_t{tile.slot} * a.out + col, a.out, tile.end - tile.slot, a.out - col);
    }
  }
#endif
}

// ---- sums over slots: both operands lie with the slots as rows. The tokens' rows are A and are gathered; the other
// one, in the order of slots, is B and comes by the copy engine.

struct WeightArguments {
  CUtensorMap flat_map;
  const void *tokens, *flat;
  void* dw;
  const int32_t *order, *offsets;
  Divider token_of;
  int64_t token_stride;
  int token_cols, flat_cols, row_tiles, col_tiles, tiles;
};

struct WeightTile {
  int expert, row, col, begin, end;  // columns of the tokens' rows, of the others; slots

  __device__ __forceinline__ WeightTile(const WeightArguments& a, int t) : expert(t / (a.row_tiles * a.col_tiles)) {
    const int in_expert = t - expert * a.row_tiles * a.col_tiles, of_row = in_expert / a.col_tiles;
    row = of_row * kRows, col = (in_expert - of_row * a.col_tiles) * kCols;
    begin = a.offsets[expert], end = a.offsets[expert + 1];
  }
};

// kDepth slots and kWidth columns of one operand, in panels of 64 columns: a thread copies every kStep-th row.
template <class T, int kWidth>
struct SlotLoader {
  static constexpr int kPieces = kWidth / 8, kStep = kWarpgroup / kPieces, kEach = kDepth / kStep;

  // row_of(slot): where it lies, or -1 for zeros.
  template <class RowOf>
  static __device__ __forceinline__ void copy(T* stage, const T* data, int64_t stride, int col, int cols,
                                              const RowOf& row_of) {
    const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
    const bool inside = col + piece * 8 < cols;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + kStep * i, row = row_of(i, at);
      const bool zeros = !inside || row < 0;
      start_copy(stage + piece / 8 * kPanelNumbers + at * 64 + (piece % 8 ^ at % 8) * 8,
                 zeros ? data : data + row * stride + col + piece * 8, zeros);
    }
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

template <class T>
__device__ __forceinline__ void load_slots(const WeightArguments& a, Memory<T>& m) {
  using Tokens = SlotLoader<T, kRows>;
  Loader<T> loader(m);
  WeightSteps step(a);
  // Where rows lie is asked for one step ahead: the answer takes as long as a step's products.
  int ahead[Tokens::kEach];
  const auto ask = [&] {
#pragma unroll
    for (int i = 0; i < Tokens::kEach; ++i) {
      const int at = step.slot + int(threadIdx.x) / Tokens::kPieces + Tokens::kStep * i;
      ahead[i] = step.left() && at < step.tile.end ? a.order[at] : -1;
    }
  };
  ask();
  while (step.left()) {
    const int slot = step.slot, row = step.tile.row, col = step.tile.col, end = step.tile.end;
    int order[Tokens::kEach];
#pragma unroll
    for (int i = 0; i < Tokens::kEach; ++i) order[i] = ahead[i];
    step.next();
    ask();
    loader.begin();
    const int stage = loader.stage.index;
    const bool whole = slot + kDepth <= end;
    if (threadIdx.x == 0) {
      if (whole) {
        m.full[stage].arrive_expecting(sizeof m.b[0]);
#pragma unroll
        for (int p = 0; p < kCols / 64; ++p)
          load_box(m.b[stage] + p * kPanelNumbers, a.flat_map, m.full[stage], col + 64 * p, slot, 0, 0);
      } else {
        m.full[stage].arrive();
      }
    }
    Tokens::copy(m.a[stage], static_cast<const T*>(a.tokens), a.token_stride, row, a.token_cols,
                 [&](int i, int) { return order[i] < 0 ? -1 : int(a.token_of(order[i])); });
    // Behind an expert's last slot are another's numbers: zeros, since infinity times 0 is none.
    if (!whole)
      SlotLoader<T, kCols>::copy(m.b[stage], static_cast<const T*>(a.flat), a.flat_cols, col, a.flat_cols,
                                 [&](int, int at) { return slot + at < end ? slot + at : -1; });
    loader.end();
  }
  loader.finish();
}

// kTransposed: dw is [flat columns, tokens' columns].
template <class T, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1) multiply_weights(const __grid_constant__ WeightArguments a) {
#if MOE_HOPPER_CODE
  auto& m = begin_block<T>(a.flat_map);
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    load_slots<T>(a, m);
  } else {
    take_registers<kWorkerRegisters>();
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
                                  .token_stride = tokens.stride,
                                  .token_cols = int(tokens.cols),
                                  .flat_cols = int(flat.cols),
                                  .row_tiles = int(row_tiles),
                                  .col_tiles = int(col_tiles),
                                  .tiles = int(tiles)};
  launch_with_memory<&multiply_weights<T, kTransposed>>(kMemoryBytes<T>, std::min<int64_t>(tiles, multiprocessors()),
                                                        kThreads, stream, arguments);
}

}  // namespace

bool hopper_takes(const Product& a) {
  return has_hopper(a.p) && aligned({a.rows.data, a.w, a.y}, {a.rows.stride, a.rows.cols, a.out}) &&
         fits_tensor_map(shape_of(a));
}
bool hopper_takes(const WeightGradient& a) {
  return has_hopper(a.p) && a.left.tokens != a.right.tokens &&
         fits_tensor_map(flat_shape(a.p, a.left.tokens ? a.right : a.left)) &&
         aligned({a.left.data, a.right.data, a.dw}, {a.left.stride, a.left.cols, a.right.stride, a.right.cols});
}

void multiply_hopper(const Product& a, Stream stream) {
  if (a.p.assignments() == 0) return;
  with_half(a.p.dtype, [&]<typename T>() {
    with_row_arguments(a, Columns::kPlain, [&](const RowArguments& arguments, int64_t blocks) {
      if (a.by_inputs)
        launch_with_memory<&multiply_rows<T, true>>(kMemoryBytes<T>, blocks, kThreads, stream, arguments);
      else
        launch_with_memory<&multiply_rows<T, false>>(kMemoryBytes<T>, blocks, kThreads, stream, arguments);
    });
  });
}
bool hopper_activates(const Product& a) {
  const bool built = a.p.act == Act::kSwiGlu || a.p.act == Act::kSwiGluOai;
  return built && a.p.inner % 8 == 0 && hopper_takes(a);
}
void activate_hopper(const Product& a, void* activated, Stream stream) {
  if (a.p.assignments() == 0) return;
  (a.p.act == Act::kSwiGlu ? up_swiglu : up_swiglu_oai)(a, activated, stream);
}
void multiply_hopper(const WeightGradient& a, Stream stream) {
  with_half(a.p.dtype, [&]<typename T>() {
    a.left.tokens ? launch_weights<T, false>(a, stream) : launch_weights<T, true>(a, stream);
  });
}

}  // namespace moe::cuda
