// Products of up to 32 rows with weights in blocks (packing.h), read once and as they are, and blocks as floating
// point; up to 4 rows are packed_few.cu's where they fit.
//
// A block of threads makes 16 outputs at a time. One warp fetches rows of blocks by TMA into a ring in shared memory,
// 2048 columns of all 16 at once; each of eight others takes 256 of these columns and multiplies by tensor cores: codes
// are integers, exact in 16 bits, and each group's sums are multiplied by the group's scale in float32. So the weights
// are not rounded. What is to be subtracted, a group's minimum times the sum of its x, comes of a product with ones.
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"
#include "kernels/linear/cuda/linear.h"
#include "kernels/linear/cuda/packed_codes.cuh"

namespace linear::cuda {
namespace {

using namespace kernels::gpu;
using kernels::divide_up;
using kernels::DType;
using kernels::Stream;

constexpr int kOutputs = 16, kConsumers = 8, kThreads = 32 * (kConsumers + 1);
constexpr int kPiece = 256, kChunk = kPiece * kConsumers;  // columns of a warp, and of all
constexpr int kMaxStages = 6;

// What a chunk of 16 rows takes in shared memory. Rows are 16 bytes more than a multiple of 32 apart: words of eight of
// them are in different banks.
template <Packing P>
struct Ring16 {
  using L = Layout<P>;
  static constexpr int kBlocks = L::kBits <= 5 && L::kWeights == 32 ? 3 : 2;  // that share a multiprocessor
  static constexpr int kRingBytes = kBlocks == 3 ? 60 << 10 : 96 << 10;
  static constexpr int kRow = kChunk / L::kWeights * L::kBytes, kPitch = kRow % 32 == 16 ? kRow : kRow + 16;
  static constexpr int kStage = kOutputs * kPitch,
                       kStages = kRingBytes / kStage < kMaxStages ? kRingBytes / kStage : kMaxStages;
  static_assert(kRow % 16 == 0 && kPitch % 32 == 16 && kStages >= 2);
};

template <int kTiles>
struct PackedMemory {
  Mbarrier full[kMaxStages], free[kMaxStages];
  float sums[2][kConsumers][8 * kTiles][kOutputs];  // of every other 16 outputs
};

template <Packing P>
__device__ __forceinline__ void fetch(const PackedRows& a, uint8_t* ring, Mbarrier* full, Mbarrier* free) {
  using R = Ring16<P>;
  using L = Layout<P>;
  const int lane = threadIdx.x % 32, row_bytes = a.in / L::kWeights * L::kBytes;
  const bool whole = (reinterpret_cast<uintptr_t>(a.w) | uint64_t(a.w_stride) | uint64_t(row_bytes)) % 16 == 0;
  PipelineState<R::kStages> at;
  for (int64_t first = int64_t{blockIdx.x} * kOutputs; first < a.out; first += int64_t{gridDim.x} * kOutputs) {
    const int rows = int(a.out - first < kOutputs ? a.out - first : kOutputs);
    for (int begin = 0; begin < row_bytes; begin += R::kRow, at.next()) {
      const int bytes = row_bytes - begin < R::kRow ? row_bytes - begin : R::kRow;
      uint8_t* to = ring + at.index * R::kStage;
      const uint8_t* from = a.w + first * a.w_stride + begin;
      free[at.index].wait(at.parity ^ 1);
      if (whole) {
        if (lane == 0) full[at.index].arrive_expect_tx(uint32_t(rows * bytes));
        __syncwarp();
        if (lane < rows) bulk_load(to + lane * R::kPitch, from + lane * a.w_stride, uint32_t(bytes), full[at.index]);
      } else {
        for (int row = 0; row < rows; ++row) copy_halves(to + row * R::kPitch, from + row * a.w_stride, bytes, lane);
        __syncwarp();
        if (lane == 0) full[at.index].arrive();
      }
    }
  }
}

// Where this thread reads x: row lane / 4 of each tile of eight, columns lane % 4 * 4 and three more of 16. Rows that
// are not there are the last one: what comes of them is left out.
template <class T, int kTiles>
struct ThreadRows {
  const T* row[kTiles];
  __device__ explicit ThreadRows(const PackedRows& a) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      row[tile] = static_cast<const T*>(a.x) + min(8 * tile + lane / 4, a.rows - 1) * a.x_stride + 4 * (lane % 4);
  }
};

// 256 columns of 16 outputs, the first of them x's `column`, added to sums [tile], each as D of an mma.
template <Packing P, class T, int kTiles>
__device__ __forceinline__ void multiply_piece(const SharedRow (&rows)[2], const ThreadRows<T, kTiles>& x, int column,
                                               int columns, float (&sums)[kTiles][4]) {
  using L = Layout<P>;
  constexpr bool kBlocksOf256 = L::kWeights == 256, kTwoScales = P == Packing::kQ6_K;
  constexpr int kGroups = L::kWeights / 32;
  constexpr uint32_t kOne = std::is_same_v<T, BFloat16> ? 0x3f803f80u : 0x3c003c00u;
  constexpr auto mma = mma_m16n8k16<T>;
  const int lane = threadIdx.x % 32, part = lane % 4;
  GroupScale known[2][2];  // of the groups 2 * part and the next of a block of 256, which the others read
  if constexpr (kBlocksOf256 && !kTwoScales) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) known[r][i] = group_scale<P>(rows[r], 0, 2 * part + i, 0);
  }
#pragma unroll
  for (int of_piece = 0; of_piece < kPiece / 32; ++of_piece) {
    if (!kBlocksOf256 && column + 32 * of_piece >= columns) break;
    const int block = of_piece / kGroups * L::kBytes, group = of_piece % kGroups;
    GroupScale scale[2];
    float made[kTiles][4] = {}, of_x[kTiles][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        integers_of<P, T>(four_codes<P>(rows[r], block, group, half, part), codes[r], codes[r + 2]);
        if constexpr (kBlocksOf256 && !kTwoScales) {
          const GroupScale& mine = known[r][group % 2];
          const int from = (lane & ~3) | group / 2;
          if (half == 0)
            scale[r] = {__shfl_sync(kAllLanes, mine.scale, from), __shfl_sync(kAllLanes, mine.minimum, from)};
        } else if (kTwoScales || half == 0) {
          scale[r] = group_scale<P>(rows[r], block, group, half);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint2 v = *reinterpret_cast<const uint2*>(x.row[tile] + column + 32 * of_piece + 16 * half);
        mma(made[tile], codes, v.x, v.y);
        if constexpr (L::kMinimum) mma(of_x[tile], {kOne, kOne, kOne, kOne}, v.x, v.y);
      }
      if (half == 0 && !kTwoScales) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[tile][i] = fmaf(made[tile][i], scale[i / 2].scale, sums[tile][i]), made[tile][i] = 0.f;
          if constexpr (L::kMinimum) sums[tile][i] = fmaf(-of_x[tile][i], scale[i / 2].minimum, sums[tile][i]);
        }
    }
  }
}

[[maybe_unused]] __device__ __forceinline__ void meet_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kConsumers) : "memory");
}

template <Packing P, class T, int kTiles>
__device__ __forceinline__ void multiply(const PackedRows& a, const uint8_t* ring, PackedMemory<kTiles>& memory) {
  using R = Ring16<P>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kPieceBytes = kPiece / Layout<P>::kWeights * Layout<P>::kBytes;
  const int begin_of_piece = kPieceBytes * warp + lane / 4 * R::kPitch;
  const uint32_t shift = kPieceBytes % 4 == 0 ? 0 : uint32_t(begin_of_piece % 4) * 8;
  const ThreadRows<T, kTiles> x(a);
  PipelineState<R::kStages> at;
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * kOutputs; first < a.out; first += int64_t{gridDim.x} * kOutputs) {
    float sums[kTiles][4] = {};
    for (int begin = 0; begin < a.in; begin += kChunk, at.next()) {
      const int column = begin + kPiece * warp;
      memory.full[at.index].wait(at.parity);
      if (column < a.in) {
        const uint8_t* piece = ring + at.index * R::kStage + begin_of_piece - shift / 8;
        const SharedRow rows[2] = {{reinterpret_cast<const uint32_t*>(piece), shift},
                                   {reinterpret_cast<const uint32_t*>(piece + 8 * R::kPitch), shift}};
        multiply_piece<P>(rows, x, column, a.in, sums);
      }
      __syncwarp();
      if (lane == 0) memory.free[at.index].arrive();
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        memory.sums[turn][warp][8 * tile + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sums[tile][i];
    meet_consumers();
    for (int i = threadIdx.x; i < 8 * kTiles * kOutputs; i += 32 * kConsumers) {
      const int row = i / kOutputs, output = i % kOutputs;
      if (row >= a.rows || first + output >= a.out) continue;
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < kConsumers; ++w) total += memory.sums[turn][w][row][output];
      if (a.bias != nullptr) total += to_float(static_cast<const T*>(a.bias)[first + output]);
      static_cast<T*>(a.y)[row * a.out + first + output] = from_float<T>(total);
    }
    turn ^= 1;  // the other half is free: all have been at the barrier since they read it
  }
}

template <Packing P, class T, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? Ring16<P>::kBlocks : 2)
    packed_rows_kernel(const PackedRows a) {
#if __CUDA_ARCH__ >= 900  // elsewhere it is never launched
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ PackedMemory<kTiles> memory;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring16<P>::kStages; ++i) memory.full[i].init(1), memory.free[i].init(kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();
  launch_dependents();
  grid_dependency_wait();
  if (threadIdx.x / 32 == kConsumers)
    fetch<P>(a, ring, memory.full, memory.free);
  else
    multiply<P, T, kTiles>(a, ring, memory);
#endif
}

template <Packing P, class T>
void launch_rows(const PackedRows& a, Stream stream) {
  const int64_t blocks = std::min(divide_up(a.out, kOutputs), int64_t{Ring16<P>::kBlocks} * multiprocessors());
  const int64_t bytes = int64_t{Ring16<P>::kStages} * Ring16<P>::kStage + 16;  // word_at() reads beyond the last row
  if (a.rows <= 8)
    launch_after_with_memory<&packed_rows_kernel<P, T, 1>>(bytes, blocks, kThreads, 1, stream, a);
  else if (a.rows <= 16)
    launch_after_with_memory<&packed_rows_kernel<P, T, 2>>(bytes, blocks, kThreads, 1, stream, a);
  else
    launch_after_with_memory<&packed_rows_kernel<P, T, 4>>(bytes, blocks, kThreads, 1, stream, a);
}

// A thread has eight columns of a row, half of 16.
constexpr int kAtOnce = 8;

template <Packing P, class T>
__global__ void __launch_bounds__(256) unpack_kernel(const Unpack a) {
  using L = Layout<P>;
  const int64_t at = int64_t{blockIdx.y} * 65535 + blockIdx.z;
  const int part = int(blockIdx.x * 256 + threadIdx.x), column = part * kAtOnce;
  if (column >= a.in || at >= a.rows) return;
  const Row row{reinterpret_cast<const uint16_t*>(a.w + at * a.w_stride)};
  const int block = column / L::kWeights * L::kBytes, group = column % L::kWeights / 32, half = column % 32 / 16;
  const GroupScale scale = group_scale<P>(row, block, group, half);
  float w[kAtOnce];
#pragma unroll
  for (int four = 0; four < 2; ++four) {
    const uint32_t codes = four_codes<P>(row, block, group, half, column % 16 / 4 + four);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float code = value_of<P>(codes >> 8 * i & 255);
      w[4 * four + i] = __fsub_rn(__fmul_rn(scale.scale, code), L::kMinimum ? scale.minimum : 0.f);
    }
  }
  T* to = static_cast<T*>(a.out) + at * a.in + column;
#pragma unroll
  for (int v = 0; v < int(kAtOnce * sizeof(T) / 16); ++v) {
    Pack<T, 16 / sizeof(T)> out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        out.w[i] = __float_as_uint(w[4 * v + i]);
      else
        out.w[i] = pack_pair<T>(w[2 * i], w[2 * i + 1]);
    }
    store(to + v * 16 / sizeof(T), out);
  }
}

template <class Kernel>
void launch_unpack(Kernel kernel, const Unpack& a, Stream stream) {
  cudaLaunchConfig_t config{};
  const int64_t planes = divide_up(a.rows, int64_t{65535});
  config.gridDim = dim3(unsigned(divide_up(a.in / kAtOnce, int64_t{256})), unsigned(planes),
                        unsigned(std::min<int64_t>(a.rows, 65535)));
  config.blockDim = dim3(256);
  config.stream = static_cast<cudaStream_t>(stream);
  checked(cudaLaunchKernelEx(&config, kernel, a), "kernel launch");
}

template <class Fn>
void with_blocks(Packing packing, Fn fn) {
  kernels::with_packing(packing, [&]<Packing P>() {
    if constexpr (kernels::gpu::has_packed_blocks(P)) fn.template operator()<P>();
  });
}

}  // namespace

void packed_rows(const PackedRows& a, Stream stream) {
  with_blocks(a.packing, [&]<Packing P>() {
    if (a.dtype == DType::kBFloat16)
      launch_rows<P, BFloat16>(a, stream);
    else
      launch_rows<P, Half>(a, stream);
  });
}

void unpack(const Unpack& a, Stream stream) {
  if (a.rows == 0 || a.in == 0) return;
  with_blocks(a.packing, [&]<Packing P>() {
    if (a.dtype == DType::kBFloat16)
      launch_unpack(&unpack_kernel<P, BFloat16>, a, stream);
    else if (a.dtype == DType::kFloat16)
      launch_unpack(&unpack_kernel<P, Half>, a, stream);
    else
      launch_unpack(&unpack_kernel<P, float>, a, stream);
  });
}

}  // namespace linear::cuda
