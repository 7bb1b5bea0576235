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
  extern __shared__ uint8_t raw[];
  auto& m = memory_of<T>(raw);
  if (threadIdx.x == 0) {
    prefetch(a.w);
    m.init(kWarpgroup + 1);
  }
  __syncthreads();
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

// ---- sums over slots: both operands lie with k, the slots, as rows

struct WeightArguments {
  const void *left, *right;
  void* dw;
  const int32_t *order, *offsets;
  Divider token_of;
  int64_t left_stride, right_stride;
  int left_cols, right_cols, row_tiles, col_tiles, tiles;
};

// kCount rows of slots and kWidth columns of one operand, in panels of 64 columns: a thread copies every kStep-th row.
template <class T, int kWidth, bool kTokens>
struct SlotLoader {
  static constexpr int kPieces = kWidth / 8, kStep = kWarpgroup / kPieces, kEach = kDepth / kStep;
  const T* data;
  int64_t stride;
  int row[kEach];  // of the next stage; -1: zeros
  const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;

  __device__ __forceinline__ void find(const WeightArguments& a, int slot, int end) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = slot + first + kStep * i;
      row[i] = at >= end ? -1 : kTokens ? int(a.token_of(a.order[at])) : at;
    }
  }
  __device__ __forceinline__ void copy(T* stage, int col, int cols) const {
    const bool inside = col + piece * 8 < cols;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = first + kStep * i;
      const bool zeros = !inside || row[i] < 0;
      start_copy(stage + piece / 8 * kPanelNumbers + at * 64 + (piece % 8 ^ at % 8) * 8,
                 zeros ? data : data + row[i] * stride + col + piece * 8, zeros);
    }
  }
};

template <class T, bool kLeftTokens>
__device__ __forceinline__ void load_slots(const WeightArguments& a, Memory<T>& m) {
  SlotLoader<T, kRows, kLeftTokens> left{static_cast<const T*>(a.left), a.left_stride};
  SlotLoader<T, kCols, !kLeftTokens> right{static_cast<const T*>(a.right), a.right_stride};
  Loader<T> loader(m);
  for (int t = blockIdx.x; t < a.tiles; t += gridDim.x) {
    const int expert = t / (a.row_tiles * a.col_tiles), tile = t - expert * a.row_tiles * a.col_tiles;
    const int row = tile / a.col_tiles * kRows, col = tile % a.col_tiles * kCols, end = a.offsets[expert + 1];
    for (int slot = a.offsets[expert]; slot < end; slot += kDepth) {
      left.find(a, slot, end);
      right.find(a, slot, end);
      loader.begin();
      left.copy(m.a[loader.stage.index], row, a.left_cols);
      right.copy(m.b[loader.stage.index], col, a.right_cols);
      loader.end();
    }
  }
  loader.finish();
}

template <class T, bool kLeftTokens>
__global__ void __launch_bounds__(kThreads, 1) multiply_weights(const __grid_constant__ WeightArguments a) {
#if MOE_HOPPER_CODE
  extern __shared__ uint8_t raw[];
  auto& m = memory_of<T>(raw);
  if (threadIdx.x == 0) m.init(kWarpgroup);
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoaderRegisters>();
    load_slots<T, kLeftTokens>(a, m);
  } else {
    take_registers<kWorkerRegisters>();
    Worker<T, true, true> worker(m);
    for (int t = blockIdx.x; t < a.tiles; t += gridDim.x) {
      const int expert = t / (a.row_tiles * a.col_tiles), tile = t - expert * a.row_tiles * a.col_tiles;
      const int row = tile / a.col_tiles * kRows, col = tile % a.col_tiles * kCols;
      const int steps = (a.offsets[expert + 1] - a.offsets[expert] + kDepth - 1) / kDepth;
      worker.multiply_steps(steps);
      if (steps == 0) {
#pragma unroll
        for (float& s : worker.sums) s = 0.f;
      }
      worker.store(static_cast<T*>(a.dw) + (int64_t{expert} * a.left_cols + row) * a.right_cols + col, a.right_cols,
                   a.left_cols - row, a.right_cols - col);
    }
  }
#endif
}

template <class T, bool kLeftTokens>
void launch_weights(const WeightGradient& a, Stream stream) {
  const int64_t row_tiles = divide_up(a.left.cols, kRows), col_tiles = divide_up(a.right.cols, kCols);
  const int64_t tiles = a.p.experts * row_tiles * col_tiles;
  const WeightArguments arguments{.left = a.left.data,
                                  .right = a.right.data,
                                  .dw = a.dw,
                                  .order = a.index.order,
                                  .offsets = a.index.offsets,
                                  .token_of = Divider(a.p.top_k),
                                  .left_stride = a.left.stride,
                                  .right_stride = a.right.stride,
                                  .left_cols = int(a.left.cols),
                                  .right_cols = int(a.right.cols),
                                  .row_tiles = int(row_tiles),
                                  .col_tiles = int(col_tiles),
                                  .tiles = int(tiles)};
  launch_with_memory<&multiply_weights<T, kLeftTokens>>(
      sizeof(Memory<T>) + 1024, std::min<int64_t>(tiles, multiprocessors()), kThreads, stream, arguments);
}

}  // namespace

bool hopper_takes(const Product& a) {
  return has_hopper(a.p) && aligned({a.rows.data, a.w, a.y}, {a.rows.stride, a.rows.cols, a.out}) &&
         fits_tensor_map(shape_of(a));
}
bool hopper_takes(const WeightGradient& a) {
  return has_hopper(a.p) && a.left.tokens != a.right.tokens &&
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
// The two that models have; the others go through h.
bool can_activate(const Product& a) {
  const bool built = a.p.act == Act::kSwiGlu || a.p.act == Act::kSwiGluOai;
  return built && !a.p.scale_input && a.p.inner % 8 == 0 && !few_take(a) && hopper_takes(a);
}
void multiply_and_activate(const Product& a, void* activated, Stream stream) {
  if (a.p.assignments() == 0) return;
  (a.p.act == Act::kSwiGlu ? up_swiglu : up_swiglu_oai)(a, activated, stream);
}
void multiply_hopper(const WeightGradient& a, Stream stream) {
  with_half(a.p.dtype, [&]<typename T>() {
    a.left.tokens ? launch_weights<T, true>(a, stream) : launch_weights<T, false>(a, stream);
  });
}

}  // namespace moe::cuda
