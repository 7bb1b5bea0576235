// Rows times the weights of their experts on sm_90a: which tiles a block has, and how they come to its shared memory.
// Weights come by TMA, the expert being a coordinate of one description of all of them; rows come by
// cp.async, through the slots' order where they are tokens'.
#pragma once

#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/tensor_map.h"
#include "kernels/moe/cuda/activations.cuh"
#include "kernels/moe/cuda/moe.h"
#include "kernels/moe/cuda/sm90_block.cuh"
#include "kernels/moe/cuda/tile_order.h"
#include "kernels/moe/cuda/tiles.cuh"

// Another architecture's pass compiles empty kernels, which are never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MOE_HOPPER_CODE 1
#else
#define MOE_HOPPER_CODE 0
#endif

namespace moe::gpu {

using kernels::divide_up;
using kernels::Divider;

// What the 256 columns of a tile are: outputs one after the other; or a gate and a value for each of 128 columns of the
// activation, from the two halves of the outputs (the values 128 columns behind their gates), or in pairs as they lie.
enum class Columns { kPlain, kHalves, kPairs };
template <Columns kColumns>
constexpr int kStep = kColumns == Columns::kPlain ? kCols : kCols / 2;

struct RowArguments {
  CUtensorMap w;
  const void *rows, *bias;
  void *y, *a;                     // with a gate y is h, or null where nobody wants it, and `a` the activation
  const int32_t *order, *offsets;  // order: null where rows lie in the order of slots
  Divider token_of;
  int64_t stride;
  int experts, in, out, inner, col_tiles;
  Limits limits;
};

// A block's tiles: all of an expert's before the next one's.
template <Columns kColumns>
struct Walk {
  const RowArguments& a;
  int expert = 0, before = 0, begin = 0, end;

  __device__ __forceinline__ explicit Walk(const RowArguments& arguments) : a(arguments), end(arguments.offsets[1]) {}
  // False: past the last. Tiles are asked for in ascending order.
  __device__ __forceinline__ bool find(int tile, RowTile& rows, int& col) {
    for (;;) {
      const int tiles = (end - begin + kRows - 1) / kRows * a.col_tiles;
      if (tile < before + tiles) break;
      before += tiles;
      if (++expert == a.experts) {
        --expert, before -= tiles;
        return false;
      }
      begin = end;
      end = a.offsets[expert + 1];
    }
    const TilePlace at = place_of(tile - before, (end - begin + kRows - 1) / kRows, a.col_tiles, kTilesTogether);
    rows = {expert, begin + at.row * kRows, end};
    col = at.col * kStep<kColumns>;
    return true;
  }
};

// Rows of a box of the weights.
constexpr int box_rows(bool by_inputs, Columns columns) {
  return by_inputs ? kDepth : columns == Columns::kHalves ? kCols / 2 : kCols;
}

template <class T, bool kByInputs, Columns kColumns>
__device__ __forceinline__ void load_weights(const RowArguments& a, Memory<T>& m, int stage, int expert, int col,
                                             int in) {
  constexpr int kBoxes = kByInputs ? kCols / 64 : kColumns == Columns::kHalves ? 2 : 1;
  m.full[stage].arrive_expect_tx(sizeof m.b[0]);
#pragma unroll
  for (int box = 0; box < kBoxes; ++box) {
    const int before = box * (kCols / kBoxes);  // columns of the tile
    const int out = kColumns == Columns::kPlain   ? col + before
                    : kColumns == Columns::kPairs ? 2 * col + before
                    : before < kCols / 2          ? col + before
                                                  : a.inner + col + before - kCols / 2;
    T* to = m.b[stage] + before * kDepth;
    kByInputs ? tma_load(to, a.w, m.full[stage], out, in, expert, 0)
              : tma_load(to, a.w, m.full[stage], in, out, expert, 0);
  }
}

template <class T, bool kByInputs, Columns kColumns>
__device__ __forceinline__ void load_rows(const RowArguments& a, Memory<T>& m) {
  constexpr int kEach = kRows * 8 / kWarpgroup;  // pieces of 16 bytes a thread and stage: of as many rows
  const int piece = threadIdx.x % 8, first = threadIdx.x / 8;
  const int place = first * 64 + (piece ^ first % 8) * 8;
  Loader<T> loader(m);
  Walk<kColumns> walk(a);
  RowTile tile;
  int col;
  for (int t = blockIdx.x; walk.find(t, tile, col); t += gridDim.x) {
    const T* from[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int slot = tile.slot + first + 16 * i;
      from[i] = nullptr;
      if (slot >= tile.end) continue;
      const int64_t row = a.order == nullptr ? slot : int64_t{a.token_of(a.order[slot])};
      from[i] = static_cast<const T*>(a.rows) + row * a.stride + piece * 8;
    }
    for (int in = 0; in < a.in; in += kDepth) {
      loader.begin();
      const int stage = loader.stage.index;
      if (threadIdx.x == 0) load_weights<T, kByInputs, kColumns>(a, m, stage, tile.expert, col, in);
      const bool inside = in + piece * 8 < a.in;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const bool zeros = !inside || from[i] == nullptr;
        cp_async(m.a[stage] + place + i * 16 * 64, zeros ? a.rows : from[i] + in, zeros);
      }
      loader.end();
    }
  }
}

// ---- launches

inline bool aligned(std::initializer_list<const void*> data, std::initializer_list<int64_t> numbers) {
  uint64_t bits = 0;
  for (const void* p : data) bits |= reinterpret_cast<uintptr_t>(p);
  for (const int64_t n : numbers) bits |= uint64_t(n) * 2;
  return bits % kernels::kVectorBytes == 0;
}
inline bool has_hopper(const Problem& p) {
  return size_of(p.dtype) == 2 && attribute<cudaDevAttrComputeCapabilityMajor>() == 9;
}

inline TensorShape shape_of(const cuda::Product& a) {
  const int64_t in = a.rows.cols, inner = a.by_inputs ? a.out : in, outer = a.by_inputs ? in : a.out;
  return {.data = a.w,
          .size = {inner, outer, a.p.experts, 1},
          .stride = {1, inner, in * a.out, in * a.out},
          .dtype = a.p.dtype};
}

// fn(arguments, blocks)
template <class Fn>
void with_row_arguments(const cuda::Product& a, Columns columns, const Fn& fn) {
  const int64_t col_tiles = columns == Columns::kPlain ? divide_up(a.out, kCols) : divide_up(a.p.inner, kCols / 2);
  const RowArguments arguments{.w = tensor_map(shape_of(a), box_rows(a.by_inputs, columns)),
                               .rows = a.rows.data,
                               .bias = a.bias,
                               .y = a.y,
                               .a = nullptr,
                               .order = a.rows.tokens ? a.index.order : nullptr,
                               .offsets = a.index.offsets,
                               .token_of = Divider(a.p.top_k),
                               .stride = a.rows.stride,
                               .experts = int(a.p.experts),
                               .in = int(a.rows.cols),
                               .out = int(a.out),
                               .inner = int(a.p.inner),
                               .col_tiles = int(col_tiles),
                               .limits = {a.p.alpha, a.p.limit}};
  const int64_t tiles = max_row_tiles(a.p.assignments(), a.p.experts, kRows) * col_tiles;
  fn(arguments, std::min<int64_t>(tiles, multiprocessors()));
}

template <class T>
constexpr int64_t kMemoryBytes = sizeof(Memory<T>) + 1024;

template <class Fn>
void with_half(DType dtype, const Fn& fn) {
  dtype == DType::kBFloat16 ? fn.template operator()<kernels::BFloat16>() : fn.template operator()<kernels::Half>();
}

}  // namespace moe::gpu
