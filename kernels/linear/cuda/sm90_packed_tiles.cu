// Products of 5 to 64 rows with weights in blocks (packing.h), read once and as they are, by wgmma (sm_90a).
//
// A block of threads has outputs of its own, 128 at a time. One warp brings rows of blocks to shared memory by TMA, 512
// columns of all 128 at once, another one x in panels of 64 columns. Two warpgroups of 64 outputs make A of the codes
// in registers: integers, exact in 16 bits, so that the weights are not rounded; B is x as TMA wrote it. A group's sums
// are multiplied by the group's scale in float32. What is to be subtracted, a group's minimum times the sum of its x,
// comes of a product with ones. Where a block has at most 64 outputs, the warpgroups share the columns instead.
#include <algorithm>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/tensor_map.h"
#include "kernels/common/gpu/ptx/tma.cuh"
#include "kernels/common/gpu/ptx/wgmma.cuh"
#include "kernels/linear/cuda/linear.h"
#include "kernels/linear/cuda/packed_codes.cuh"

namespace linear::cuda {
namespace {

using namespace kernels::gpu;
using kernels::divide_up;
using kernels::DType;
using kernels::Stream;

constexpr int kOutputs = 128, kPerWarpgroup = 64, kConsumerWarps = 8;
constexpr int kThreads = 3 * kWarpgroup, kProducerRegisters = 40, kConsumerRegisters = 232;
constexpr int kChunk = 512;  // columns of a stage of weights
constexpr int kMaxStages = 4, kPanels = 8;
constexpr int64_t kShared = 227 << 10;

// Blocks that begin at multiples of 16 bytes every 512 columns, and whose codes are stored by columns.
template <Packing P>
constexpr bool kTakesTiles = P != Packing::kQ6_K&& P != Packing::kQ5_0;

// What one warpgroup does between two waits.
template <Packing P>
struct Piece {
  static constexpr int kWeights = Layout<P>::kWeights;
  static constexpr bool kOneScale = P == Packing::kInt4G64 || P == Packing::kInt4G128 || P == Packing::kE4m3G128;
  static constexpr int kColumns = kOneScale && kWeights == 128 ? 128 : 64, kPanelsOf = kColumns / kPanel;
  static constexpr int kGroups = kColumns / 32, kSets = kOneScale ? 1 : kGroups;  // of sums with a scale each
  static constexpr bool kMinimum = Layout<P>::kMinimum && !kernels::kIsInt4<P>;
};

template <Packing P, int N>
struct Memory {
  static constexpr int kRow = kChunk / Layout<P>::kWeights * Layout<P>::kBytes;
  static constexpr int kPitch = kRow % 32 == 16 ? kRow : kRow + 16;  // rows begin at different banks
  static constexpr int kPanelBytes = N * kPanel * 2, kStageBytes = kOutputs * kPitch;
  static constexpr int64_t kRest = kShared - 1024 - kPanels * kPanelBytes - N / 2 * kWarpgroup * 4 - 512;
  static constexpr int kStages = int(std::min<int64_t>(kMaxStages, kRest / kStageBytes));
  static_assert(kRow % 16 == 0 && kStages >= 2);

  uint8_t panels[kPanels][kPanelBytes];
  uint8_t weights[kStages][kStageBytes];
  float sums[N / 2][kWarpgroup];  // of the second warpgroup, where they share the columns
  Mbarrier full[kStages], free[kStages], x_full[kPanels], x_free[kPanels];
};

struct Arguments {
  CUtensorMap x;
  const uint8_t* w;
  int64_t w_stride;
  const void* bias;
  void* y;
  int64_t out;
  int rows, in, per_block;  // outputs of a block
};

// Outputs [begin, end) of this block, a tile at a time.
struct Outputs {
  int64_t begin, end;
  __device__ explicit Outputs(const Arguments& a)
      : begin(int64_t{blockIdx.x} * a.per_block), end(min(begin + a.per_block, a.out)) {}
};

// The warp that fetches weights.
template <Packing P, int N>
__device__ __forceinline__ void fetch_weights(const Arguments& a, Memory<P, N>& m) {
  using M = Memory<P, N>;
  const int lane = threadIdx.x % 32, row_bytes = a.in / Layout<P>::kWeights * Layout<P>::kBytes;
  const Outputs outputs(a);
  PipelineState<M::kStages> at;
  for (int64_t first = outputs.begin; first < outputs.end; first += kOutputs) {
    const int rows = int(min(outputs.end - first, int64_t{kOutputs}));
    for (int begin = 0; begin < row_bytes; begin += M::kRow, at.next()) {
      const int bytes = min(row_bytes - begin, M::kRow);
      m.free[at.index].wait(at.parity ^ 1);
      if (lane == 0) m.full[at.index].arrive_expect_tx(uint32_t(rows * bytes));
      __syncwarp();
      for (int row = lane; row < rows; row += 32)
        bulk_load(m.weights[at.index] + row * M::kPitch, a.w + (first + row) * a.w_stride + begin, uint32_t(bytes),
                  m.full[at.index]);
    }
  }
}

// The thread that fetches x, once for each tile.
template <Packing P, int N>
__device__ __forceinline__ void fetch_x(const Arguments& a, Memory<P, N>& m) {
  const Outputs outputs(a);
  PipelineState<kPanels> at;
  for (int64_t first = outputs.begin; first < outputs.end; first += kOutputs) {
    for (int column = 0; column < a.in; column += kPanel, at.next()) {
      m.x_free[at.index].wait(at.parity ^ 1);
      m.x_full[at.index].arrive_expect_tx(Memory<P, N>::kPanelBytes);
      tma_load(m.panels[at.index], a.x, m.x_full[at.index], column, 0, 0, 0);
    }
  }
}

template <Packing P, class T, int N>
class Consumer {
  using M = Memory<P, N>;
  using G = Piece<P>;
  static constexpr int kSums = N / 2, kSteps = G::kColumns / 16;

 public:
  __device__ Consumer(const Arguments& a, M& m)
      : a_(a),
        m_(m),
        // Uniform for the compiler, too: a branch by it must not look as if it could part a warpgroup.
        warpgroup_(__shfl_sync(kAllLanes, int(threadIdx.x) / kWarpgroup - 1, 0)),
        warp_(int(threadIdx.x) / 32 % 4),
        lane_(int(threadIdx.x) % 32),
        shared_columns_(a.per_block <= kPerWarpgroup) {}

  __device__ __forceinline__ void run() {
    const Outputs outputs(a_);
    PipelineState<M::kStages> stage;
    uint32_t panel = 0;  // how many panels there were
    for (int64_t first = outputs.begin; first < outputs.end; first += kOutputs) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[i] = 0.f;
      for (int column = 0; column < a_.in; column += kChunk, stage.next()) {
        m_.full[stage.index].wait(stage.parity);
        multiply_stage(m_.weights[stage.index], panel, min(a_.in - column, kChunk));
        __syncwarp();
        if (lane_ == 0) m_.free[stage.index].arrive();
        panel += uint32_t(min(a_.in - column, kChunk) + kPanel - 1) / kPanel;
      }
      write(first, outputs.end);
    }
  }

 private:
  // A of a piece, and what its sums are multiplied by: [first row, eighth after it][set].
  struct Codes {
    uint32_t a[kSteps][4];
    GroupScale scale[2][G::kSets];
  };

  __device__ __forceinline__ void multiply_stage(const uint8_t* weights, uint32_t panel, int columns) {
    const int step = shared_columns_ ? 2 : 1, begin = shared_columns_ ? warpgroup_ : 0;
    const int pieces = (columns + G::kColumns - 1) / G::kColumns;
    if (begin >= pieces) return;
    const int row = (shared_columns_ ? 0 : warpgroup_ * kPerWarpgroup) + 16 * warp_ + lane_ / 4;
    const uint8_t* rows[2] = {weights + row * M::kPitch, weights + (row + 8) * M::kPitch};
    Codes even, odd;
    decode(rows, begin, columns, even);
    for (int piece = begin; piece < pieces; piece += 2 * step) {
      multiply_piece(rows, even, odd, panel, piece, step, pieces, columns);
      if (piece + step >= pieces) break;
      multiply_piece(rows, odd, even, panel, piece + step, step, pieces, columns);
    }
  }

  // The products of `now`, beside which the codes of the piece after it are decoded.
  __device__ __forceinline__ void multiply_piece(const uint8_t* const (&rows)[2], Codes& now, Codes& next,
                                                 uint32_t panel, int piece, int step, int pieces, int columns) {
    float made[G::kSets][kSums], of_x[G::kMinimum ? G::kSets : 1][kSums];
    const uint32_t first = panel + uint32_t(piece * G::kPanelsOf);
#pragma unroll
    for (int p = 0; p < G::kPanelsOf; ++p) m_.x_full[(first + p) % kPanels].wait((first + p) / kPanels & 1);
    wgmma_fence();
#pragma unroll
    for (int p = 0; p < G::kPanelsOf; ++p) {
      const Operand x = operand_by_rows(m_.panels[(first + p) % kPanels]);
#pragma unroll
      for (int i = 0; i < kPanel / 16; ++i) {
        const int k = p * (kPanel / 16) + i, set = G::kSets == 1 ? 0 : k / 2;
        const bool add = G::kSets == 1 ? k > 0 : k % 2 > 0;
        wgmma<T, N, false>(made[set], now.a[k], moved(x, 32 * i), add);
        if constexpr (G::kMinimum) wgmma<T, N, false>(of_x[set], ones(), moved(x, 32 * i), add);
      }
    }
    wgmma_commit();
    if (piece + step < pieces) decode(rows, piece + step, columns, next);
    wgmma_wait<0>();
#pragma unroll
    for (int set = 0; set < G::kSets; ++set) {
      wgmma_fence_operand(made[set]);
      if constexpr (G::kMinimum) wgmma_fence_operand(of_x[set]);
    }
    if (lane_ == 0) {
#pragma unroll
      for (int p = 0; p < G::kPanelsOf; ++p) m_.x_free[(first + p) % kPanels].arrive();
    }
#pragma unroll
    for (int set = 0; set < G::kSets; ++set) {
      if (Layout<P>::kWeights == 32 && piece * G::kColumns + 32 * set >= columns) break;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const GroupScale& scale = now.scale[i % 4 / 2][set];
        total_[i] = fmaf(made[set][i], scale.scale, total_[i]);
        if constexpr (G::kMinimum) total_[i] = fmaf(-of_x[set][i], scale.minimum, total_[i]);
      }
    }
  }

  static __device__ __forceinline__ const uint32_t (&ones())[4] {
    static constexpr uint32_t kOne = std::is_same_v<T, BFloat16> ? 0x3f803f80u : 0x3c003c00u;
    static constexpr uint32_t kOnes[4] = {kOne, kOne, kOne, kOne};
    return kOnes;
  }

  // Where a group of 32 columns of a piece is: its block in the row, and which of the block's groups.
  struct GroupPosition {
    int block, group;
  };
  static __device__ __forceinline__ GroupPosition position_of(int piece, int group) {
    using L = Layout<P>;
    if constexpr (L::kWeights <= G::kColumns) {
      constexpr int kBlocks = G::kColumns / L::kWeights;
      return {(piece * kBlocks + 32 * group / L::kWeights) * L::kBytes, 32 * group % L::kWeights / 32};
    } else {
      constexpr int kPieces = L::kWeights / G::kColumns;
      return {piece / kPieces * L::kBytes, piece % kPieces * G::kGroups + group};
    }
  }

  // Only blocks of 32 can end within a piece: beyond them the codes are 0, and their sums are left out.
  __device__ __forceinline__ void decode(const uint8_t* const (&rows)[2], int piece, int columns, Codes& to) {
    using L = Layout<P>;
    const int part = lane_ % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const SplitRow codes{rows[r], part};
      const SharedRow words{reinterpret_cast<const uint32_t*>(rows[r]), 0};
      uint32_t zero = uint32_t(L::kZero);
#pragma unroll
      for (int group = 0; group < G::kGroups; ++group) {
        uint32_t(&first)[4] = to.a[2 * group];
        uint32_t(&second)[4] = to.a[2 * group + 1];
        if (L::kWeights == 32 && piece * G::kColumns + 32 * group >= columns) {
          first[r] = first[r + 2] = second[r] = second[r + 2] = 0;
          continue;
        }
        const GroupPosition at = position_of(piece, group);
        if (G::kSets > 1 || group == 0) {
          to.scale[r][group % G::kSets] = group_scale<P>(words, at.block, at.group, 0);
          if constexpr (kernels::kIsInt4<P>) zero = words.word<true>(at.block) & 255u;
        }
        integers_of<P, T>(four_codes<P>(codes, at.block, at.group, 0, part), first[r], first[r + 2], zero);
        integers_of<P, T>(four_codes<P>(codes, at.block, at.group, 1, part), second[r], second[r + 2], zero);
      }
    }
  }

  __device__ __forceinline__ void write(int64_t first, int64_t end) {
    if (shared_columns_) {
      const int thread = int(threadIdx.x) % kWarpgroup;
      if (warpgroup_ == 1) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) m_.sums[i][thread] = total_[i];
      }
      barrier_wait(1, 2 * kWarpgroup);
      if (warpgroup_ == 1) return;
#pragma unroll
      for (int i = 0; i < kSums; ++i) total_[i] += m_.sums[i][thread];
    }
    const int64_t output = first + (shared_columns_ ? 0 : warpgroup_ * kPerWarpgroup) + 16 * warp_ + lane_ / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t at = output + 8 * r;
      if (at >= end) continue;
      const float bias = a_.bias != nullptr ? to_float(static_cast<const T*>(a_.bias)[at]) : 0.f;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int row = i / 4 * 8 + lane_ % 4 * 2 + i % 2;
        if (i % 4 / 2 == r && row < a_.rows) static_cast<T*>(a_.y)[row * a_.out + at] = from_float<T>(total_[i] + bias);
      }
    }
  }

  const Arguments& a_;
  M& m_;
  const int warpgroup_, warp_, lane_;
  const bool shared_columns_;
  float total_[kSums];
};

template <Packing P, class T, int N>
__global__ void __launch_bounds__(kThreads, 1) packed_tiles_kernel(const __grid_constant__ Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // elsewhere it is never launched
  extern __shared__ uint8_t raw[];
  // Panels begin at multiples of 1024 bytes (wgmma.cuh); the launch has asked for as many more.
  auto& m = *reinterpret_cast<Memory<P, N>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    const int readers = a.per_block <= kPerWarpgroup ? kConsumerWarps / 2 : kConsumerWarps;
    for (int i = 0; i < Memory<P, N>::kStages; ++i) m.full[i].init(1), m.free[i].init(kConsumerWarps);
    for (int i = 0; i < kPanels; ++i) m.x_full[i].init(1), m.x_free[i].init(readers);
    fence_mbarrier_init();
    prefetch_tensormap(a.x);
  }
  __syncthreads();
  launch_dependents();
  grid_dependency_wait();
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < 32) fetch_weights<P, N>(a, m);
    if (threadIdx.x == 32) fetch_x<P, N>(a, m);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    Consumer<P, T, N>(a, m).run();
  }
#endif
}

kernels::gpu::TensorShape shape_of_x(const PackedRows& a) {
  return {.data = a.x, .size = {a.in, a.rows, 1, 1}, .stride = {1, a.x_stride, 1, 1}, .dtype = a.dtype};
}

template <Packing P, class T, int N>
void launch_tiles(const PackedRows& a, Stream stream) {
  constexpr int kOfWarp = 16;
  const int64_t per_block = divide_up(divide_up(a.out, kOfWarp), int64_t{multiprocessors()}) * kOfWarp;
  const Arguments arguments{.x = tensor_map(shape_of_x(a), N),
                            .w = a.w,
                            .w_stride = a.w_stride,
                            .bias = a.bias,
                            .y = a.y,
                            .out = a.out,
                            .rows = a.rows,
                            .in = a.in,
                            .per_block = int(per_block)};
  launch_after_with_memory<&packed_tiles_kernel<P, T, N>>(int64_t(sizeof(Memory<P, N>)) + 1024,
                                                          divide_up(a.out, per_block), kThreads, 1, stream, arguments);
}

template <Packing P, class T>
void launch_rows(const PackedRows& a, Stream stream) {
  if (a.rows <= 8)
    launch_tiles<P, T, 8>(a, stream);
  else if (a.rows <= 16)
    launch_tiles<P, T, 16>(a, stream);
  else if (a.rows <= 32)
    launch_tiles<P, T, 32>(a, stream);
  else
    launch_tiles<P, T, 64>(a, stream);
}

template <Packing P>
constexpr bool kTaken = kernels::gpu::has_packed_blocks(P) && kTakesTiles<P>;

}  // namespace

bool takes_packed_tiles(const PackedRows& a) {
  bool known = false;
  kernels::with_packing(a.packing, [&]<Packing P>() { known = kTaken<P>; });
  const auto whole = [](const void* data, int64_t stride) {
    return (reinterpret_cast<uintptr_t>(data) | uint64_t(stride)) % 16 == 0;
  };
  const int64_t row_bytes = a.in / kernels::packed_block(a.packing) * kernels::packed_bytes(a.packing);
  return known && a.rows <= kMaxTileRows && attribute<cudaDevAttrComputeCapabilityMajor>() == 9 &&
         whole(a.w, a.w_stride) && row_bytes % 16 == 0 && fits_tensor_map(shape_of_x(a));
}

void packed_tiles(const PackedRows& a, Stream stream) {
  kernels::with_packing(a.packing, [&]<Packing P>() {
    if constexpr (kTaken<P>) {
      if (a.dtype == DType::kBFloat16)
        launch_rows<P, BFloat16>(a, stream);
      else
        launch_rows<P, Half>(a, stream);
    }
  });
}

}  // namespace linear::cuda
