// The kernel of packed_rows.h. A block of threads makes 16 outputs at a time. One warp fetches rows of blocks by TMA
// into a ring in shared memory, 2048 columns of all 16 at once, before x is there if it may; each of eight others takes
// 256 of these columns and multiplies by tensor cores, and their sums meet in shared memory, in a fixed order.
#pragma once

#include <algorithm>

#include "kernels/common/gpu/activations.cuh"
#include "kernels/common/gpu/gemv/packed_blocks.cuh"
#include "kernels/common/gpu/gemv/packed_x.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"

namespace kernels::gpu {

constexpr int kPackedOutputs = 16, kPackedThreads = 32 * (kPackedConsumers + 1);
constexpr int kPackedChunk = kPackedPiece * kPackedConsumers;  // columns of a stage
constexpr int kMaxPackedStages = 8;

// What a chunk of 16 rows takes in shared memory. The distance of rows spreads eight of them, which a warp reads at
// once, over all banks.
template <Packing P>
struct PackedStage {
  using Blocks = PackedBlocks<P>;
  static constexpr int kRow = kPackedChunk / Blocks::kWeights * Blocks::kBytes, kOff = Blocks::kPairs ? 32 : 16;
  static constexpr int kPitch = kRow + (128 + kOff - kRow % 128) % 128;
  static constexpr int kBytes = kPackedOutputs * kPitch;
  static_assert(kRow % 16 == 0 && kPitch % 128 == kOff);
};

struct PackedRing {
  uint8_t* memory;
  int stages, index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == stages) index = 0, parity ^= 1;
  }
};

__device__ __forceinline__ bool is_gated(const PackedRows& a) { return a.act != FewRowsAct::kNone; }

// 16 outputs: rows of one weight, or eight of gate and the same eight of up.
struct PackedTile {
  int which, first;  // weight, and its first row
  __device__ PackedTile(const PackedRows& a, int tile) : which(0), first(tile * kPackedOutputs) {
    if (is_gated(a)) {
      first = tile * (kPackedOutputs / 2);
      return;
    }
    for (; which + 1 < a.weights; ++which) {
      const int all = (a.w[which].rows + kPackedOutputs - 1) / kPackedOutputs * kPackedOutputs;
      if (first < all) break;
      first -= all;
    }
  }
  // Of the 16: null where the weight has no such row.
  __device__ __forceinline__ const uint8_t* row(const PackedRows& a, int output) const {
    const PackedRowsWeight& w = is_gated(a) ? a.w[output / 8] : a.w[which];
    const int row = first + (is_gated(a) ? output % 8 : output);
    return row < w.rows ? w.data + row * w.stride : nullptr;
  }
};

// A stage's rows; `mine`: lane i's row i of the 16, or null. whole: rows begin at multiples of 16 bytes.
template <Packing P>
__device__ __forceinline__ void fetch_stage(uint8_t* to, const uint8_t* mine, int begin, int bytes, bool whole,
                                            Mbarrier& full) {
  using Stage = PackedStage<P>;
  const int lane = threadIdx.x % 32;
  if (whole) {
    const int rows = __popc(__ballot_sync(kAllLanes, mine != nullptr));
    if (lane == 0) full.arrive_expect_tx(uint32_t(rows * bytes));
    __syncwarp();
    if (mine != nullptr) bulk_load(to + lane * Stage::kPitch, mine + begin, uint32_t(bytes), full);
    return;
  }
  for (int row = 0; row < kPackedOutputs; ++row) {
    const auto* from =
        reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(mine), row));
    if (from != nullptr) copy_halves(to + row * Stage::kPitch, from + begin, bytes, lane);
  }
  __syncwarp();
  if (lane == 0) full.arrive();
}

template <Packing P>
__device__ __forceinline__ void fetch_packed(const PackedRows& a, int tiles, PackedRing at, Mbarrier* full,
                                             Mbarrier* free) {
  using Stage = PackedStage<P>;
  const int lane = threadIdx.x % 32, row_bytes = a.in / Stage::Blocks::kWeights * Stage::Blocks::kBytes;
  bool whole = row_bytes % 16 == 0;
  for (int i = 0; i < a.weights; ++i)
    whole = whole && (reinterpret_cast<uintptr_t>(a.w[i].data) | uint64_t(a.w[i].stride)) % 16 == 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint8_t* mine = lane < kPackedOutputs ? PackedTile(a, tile).row(a, lane) : nullptr;
    for (int begin = 0; begin < row_bytes; begin += Stage::kRow, at.next()) {
      free[at.index].wait(at.parity ^ 1);
      fetch_stage<P>(at.memory + at.index * Stage::kBytes, mine, begin, min(row_bytes - begin, Stage::kRow), whole,
                     full[at.index]);
    }
  }
}

// An output of one row of x, from the warps' sums [warp][row][16].
template <class T, int kRows>
__device__ __forceinline__ float packed_sum(const float (&sums)[kPackedConsumers][kRows][kPackedOutputs], int row,
                                            int output) {
  float total = 0.f;
#pragma unroll
  for (int w = 0; w < kPackedConsumers; ++w) total += sums[w][row][output];
  return total;
}

// Which element of out a thread makes of a tile, if any: its column, and of which weight.
struct PackedOutput {
  int row, output, which, in_weight, column = -1;
  __device__ PackedOutput(const PackedRows& a, int tile)
      : row(int(threadIdx.x) / kPackedOutputs), output(threadIdx.x % kPackedOutputs) {
    const PackedTile of(a, tile);
    which = of.which, in_weight = of.first + output;
    if (row >= a.rows || in_weight >= a.w[which].rows || (is_gated(a) && output >= kPackedOutputs / 2)) return;
    column = in_weight;
    for (int i = 0; i < which; ++i) column += a.w[i].rows;
  }
};

template <class T>
__device__ __forceinline__ float packed_biased(const PackedRowsWeight& w, float v, int row) {
  return w.bias == nullptr ? v : v + to_float(static_cast<const T*>(w.bias)[row]);
}

template <class T, int kRows>
__device__ __forceinline__ void packed_outputs(const PackedRows& a, const PackedOutput& mine, float residual,
                                               const float (&sums)[kPackedConsumers][kRows][kPackedOutputs]) {
  if (mine.column < 0) return;
  float v = packed_biased<T>(a.w[mine.which], packed_sum<T>(sums, mine.row, mine.output), mine.in_weight);
  if (is_gated(a)) {
    const float gate = rounded<T>(v);
    const float up = rounded<T>(
        packed_biased<T>(a.w[1], packed_sum<T>(sums, mine.row, mine.output + kPackedOutputs / 2), mine.in_weight));
    v = (a.act == FewRowsAct::kSilu ? Silu::value<true>(gate) : GeluTanh::value<true>(gate)) * up;
  } else if (a.residual != nullptr) {
    v = residual + rounded<T>(v);
  }
  static_cast<T*>(a.out)[mine.row * a.out_stride + mine.column] = from_float<T>(v);
}

template <int kRows>
struct PackedMemory {
  Mbarrier full[kMaxPackedStages], free[kMaxPackedStages];
  float sums[2][kPackedConsumers][kRows][kPackedOutputs];  // of every other tile
  float squares[kRows][kPackedConsumers];
};

// This warp's 256 columns of a stage.
template <Packing P, class PieceOfX, class Sums>
__device__ __forceinline__ void multiply_piece(const uint8_t* piece, const PieceOfX& x, int columns, Sums& sums) {
  using Stage = PackedStage<P>;
  const auto with_shift = [&]<int kShift>() {
    const PieceRows<kShift> rows{{reinterpret_cast<const uint32_t*>(piece - kShift),
                                  reinterpret_cast<const uint32_t*>(piece + 8 * Stage::kPitch - kShift)}};
    Stage::Blocks::multiply(rows, x, columns / 32, sums);
  };
  if constexpr (kPackedPiece / Stage::Blocks::kWeights * Stage::Blocks::kBytes % 4 != 0)
    if (threadIdx.x / 32 % 2 == 1) return with_shift.template operator()<2>();
  with_shift.template operator()<0>();
}

template <Packing P, int kTiles, bool kOne>
using XOfPacking = std::conditional_t<kFloatBlocks<P>, FloatX<kTiles, kOne>, PackedX<kTiles, kOne>>;

// A warp's sums of a tile to shared memory, [row][16].
template <int kTiles, bool kOne, int kRows>
__device__ __forceinline__ void store_sums(float (&sums)[kTiles][4], float (&to)[kRows][kPackedOutputs]) {
  const int n = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int i = 0; i < 4; i += kDStep<kOne>) {  // a row's digits are columns of several threads
      float sum = sums[t][i];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (part == 0) to[2 * t + i % 2][n + i / 2 * 8] = sum;
    }
}
template <int kTiles, bool kOne, int kRows>
__device__ __forceinline__ void store_sums(float (&sums)[4], float (&to)[kRows][kPackedOutputs]) {
  const int n = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (2 * part + i % 2 < kRows) to[2 * part + i % 2][n + i / 2 * 8] = sums[i];
}

template <Packing P, class T, int kTiles, bool kOne>
__device__ __forceinline__ void multiply_packed(const PackedRows& a, int tiles, PackedRing at, uint8_t* x_memory,
                                                PackedMemory<kOne ? 1 : 2 * kTiles>& memory) {
  using Stage = PackedStage<P>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const XOfPacking<P, kTiles, kOne> all(x_memory, (a.in + kPackedPiece - 1) / kPackedPiece);
  if (a.prefetch_weights) start_norm(a, all.norm);
  grid_dependency_wait();
  launch_dependents();  // not before the wait: what is older than this launch is done when the next one begins
  if (!a.prefetch_weights) start_norm(a, all.norm);
  fill_x<T, Stage::Blocks::kPairs>(a, all, memory.squares);

  constexpr int kPieceBytes = kPackedPiece / Stage::Blocks::kWeights * Stage::Blocks::kBytes;
  const int begin_of_piece = kPieceBytes * warp + lane / 4 * Stage::kPitch;
  int turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const PackedOutput mine(a, tile);
    float residual = 0.f;
    if (a.residual != nullptr && mine.column >= 0)
      residual = to_float(static_cast<const T*>(a.residual)[mine.row * a.residual_stride + mine.column]);
    std::conditional_t<kFloatBlocks<P>, float[4], float[kTiles][4]> sums = {};
    for (int begin = 0; begin < a.in; begin += kPackedChunk, at.next()) {
      const int column = begin + kPackedPiece * warp;
      memory.full[at.index].wait(at.parity);
      if (column < a.in)
        multiply_piece<P>(at.memory + at.index * Stage::kBytes + begin_of_piece, all.piece(column / kPackedPiece),
                          min(kPackedPiece, a.in - column), sums);
      __syncwarp();
      if (lane == 0) memory.free[at.index].arrive();
    }
    store_sums<kTiles, kOne>(sums, memory.sums[turn][warp]);
    meet_consumers();
    packed_outputs<T>(a, mine, residual, memory.sums[turn]);
    turn ^= 1;  // the other half is free: all have been at the barrier since they read it
  }
}

template <Packing P, class T, int kTiles, bool kOne>
__global__ void __launch_bounds__(kPackedThreads, 2)
    packed_rows_kernel(const __grid_constant__ PackedRows a, const int tiles, const int stages) {
#if __CUDA_ARCH__ >= 900  // elsewhere it is never launched
  extern __shared__ __align__(128) uint8_t memory_of_block[];
  __shared__ PackedMemory<kOne ? 1 : 2 * kTiles> memory;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) memory.full[i].init(1), memory.free[i].init(kPackedConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();
  const PackedRing ring{memory_of_block, stages};
  if (threadIdx.x / 32 == kPackedConsumers) {
    if (!a.prefetch_weights) grid_dependency_wait();
    fetch_packed<P>(a, tiles, ring, memory.full, memory.free);
  } else {
    multiply_packed<P, T, kTiles, kOne>(a, tiles, ring, memory_of_block + stages * PackedStage<P>::kBytes + 16, memory);
  }
#endif
}

inline int packed_tiles(const PackedRows& a) {
  if (a.act != FewRowsAct::kNone) return int(divide_up(a.w[0].rows, kPackedOutputs / 2));
  int tiles = 0;
  for (int i = 0; i < a.weights; ++i) tiles += int(divide_up(a.w[i].rows, kPackedOutputs));
  return tiles;
}

// Two blocks share a multiprocessor if x is small enough.
template <Packing P, class T, int kTiles, bool kOne>
void launch_packed_rows(const PackedRows& a, Stream stream) {
  constexpr int64_t kShared = 226 << 10, kOwn = 1 << 10;  // of a multiprocessor; what a block takes beside
  const int tiles = packed_tiles(a);
  if (tiles == 0) return;
  const int64_t x = packed_x_bytes(a.rows, a.in, a.norm != nullptr) + 32, stage = PackedStage<P>::kBytes;
  const int64_t fixed = int64_t{sizeof(PackedMemory < kOne ? 1 : 2 * kTiles >)} + kOwn + x;
  const int blocks = kShared / 2 - fixed >= 2 * stage ? 2 : 1;
  const int stages = int(std::min<int64_t>((kShared / blocks - fixed) / stage, kMaxPackedStages));
  const int64_t grid = std::min<int64_t>(tiles, int64_t{blocks} * multiprocessors());
  launch_after_with_memory<packed_rows_kernel<P, T, kTiles, kOne>, /*kMaxShared=*/true>(
      stages * stage + x, grid, kPackedThreads, /*cluster=*/1, stream, a, tiles, stages);
}

template <Packing P, class T>
void packed_rows_of(const PackedRows& a, Stream stream) {
  if (a.rows == 1) return launch_packed_rows<P, T, 1, true>(a, stream);
  if (a.rows == 2) return launch_packed_rows<P, T, 1, false>(a, stream);
  launch_packed_rows<P, T, 2, false>(a, stream);
}

// On the current device: TMA, and shared memory for two stages of any packing beside all of x.
inline bool takes_packed_rows() {
  constexpr int kEnough = 200 << 10;
  return attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 &&
         attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= kEnough;
}

// What fits_packed_rows() says yes to.
inline void packed_rows(const PackedRows& a, Stream stream) {
  with_packing(a.packing, [&]<Packing P>() {
    if constexpr (has_packed_blocks(P)) {
      if (a.dtype == DType::kBFloat16) return packed_rows_of<P, BFloat16>(a, stream);
      packed_rows_of<P, Half>(a, stream);
    }
  });
}

}  // namespace kernels::gpu
