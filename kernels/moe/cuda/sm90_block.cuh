// What a block of the sm_90a products has: three warpgroups. The first copies tiles of A [128 x 64] and B [256 x 64] to
// a ring of stages, the other two multiply 64 rows each and keep their sums in registers. A block goes through tile
// after tile; while one is stored, the next one's stages are filled.
//
// Gathered rows come by cp.async, 16 bytes a thread: TMA of sm_90 cannot gather. These copies themselves
// say that a stage is full, and who multiplies then makes them visible to wgmma.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/named_barrier.cuh"
#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/common/gpu/ptx/tma.cuh"
#include "kernels/common/gpu/ptx/wgmma.cuh"

namespace moe::gpu {

using namespace kernels::gpu;
using kernels::Stream;

constexpr int kRows = 128, kCols = 256, kDepth = 64, kStages = 4, kThreads = 3 * kWarpgroup;
constexpr int kLoaderRegisters = 56, kWorkerRegisters = 224;
constexpr int kPanelNumbers = 64 * 64;  // of 8 KB
constexpr int kWorkerWarps = 8;

template <class T>
struct Memory {
  T a[kStages][kRows * kDepth], b[kStages][kCols * kDepth];
  T out[kWorkerWarps][16 * 64];
  Mbarrier full[kStages], free[kStages];

  __device__ __forceinline__ void init(int loaders) {
    for (int s = 0; s < kStages; ++s) full[s].init(loaders), free[s].init(kWorkerWarps);
    fence_mbarrier_init();
  }
};

// For the threads that copy: a stage of theirs after the other. It becomes full when their copies have come, without
// anybody waiting for them.
template <class T>
struct Loader {
  Memory<T>& m;
  PipelineState<kStages> stage;

  __device__ __forceinline__ explicit Loader(Memory<T>& memory) : m(memory) {}
  __device__ __forceinline__ void begin() { m.free[stage.index].wait(stage.parity ^ 1); }
  __device__ __forceinline__ void end() {
    m.full[stage.index].cp_async_arrive();
    stage.next();
  }
};

// One of the two warpgroups that multiply.
template <class T, bool kAByColumns, bool kBByColumns>
struct Worker {
  Memory<T>& m;
  const int number = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) - 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kWarpgroup / 32;
  PipelineState<kStages> stage;
  float sums[128] = {};

  __device__ __forceinline__ explicit Worker(Memory<T>& memory) : m(memory) {}

  __device__ __forceinline__ void free(int index) {
    if (lane == 0) m.free[index].arrive();
  }
  __device__ __forceinline__ void multiply_steps(int steps) {
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      m.full[stage.index].wait(stage.parity);
      fence_proxy_async_shared();  // by cp.async; what TMA wrote is visible anyway
      const T* rows = m.a[stage.index] + number * kPanelNumbers;
      const Operand a = kAByColumns ? operand_by_columns(rows, kPanelNumbers * 2) : operand_by_rows(rows);
      const T* cols = m.b[stage.index];
      const Operand b = kBByColumns ? operand_by_columns(cols, kPanelNumbers * 2) : operand_by_rows(cols);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
        wgmma<T, 256, kBByColumns, kAByColumns>(sums, moved(a, kAByColumns ? i * 16 * 128 : i * 32),
                                                moved(b, kBByColumns ? i * 16 * 128 : i * 32), i > 0 || step > 0);
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        free(before);
      }
      before = stage.index;
      stage.next();
    }
    wgmma_wait<0>();
    wgmma_fence_operand(sums);
    if (steps > 0) free(before);
  }

  // 64 columns of this worker's rows to `to`: `rows` rows of the tile count, and `cols` columns, a multiple of 8. Each
  // warp stores its 16 rows by way of its own shared memory, so that whole lines leave. fill(out): 16 rows of 64 there,
  // their pieces of 16 bytes exchanged within 8 rows.
  template <class Fill>
  __device__ __forceinline__ void store_columns(T* to, int64_t stride, int rows, int cols, const Fill& fill) {
    const int first = 64 * number + 16 * warp;
    T* out = m.out[4 * number + warp];
    __syncwarp();
    fill(out);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * i + lane / 8, col = lane % 8 * 8;
      if (first + row < rows && col < cols)
        *reinterpret_cast<uint4*>(to + (first + row) * stride + col) =
            *reinterpret_cast<const uint4*>(out + row * 64 + (lane % 8 ^ row % 8) * 8);
    }
  }
  // word(at): elements `at` and the next one of 32 that lie as the sums of 64 columns do.
  template <class Word>
  __device__ __forceinline__ void fill_by_words(T* out, const Word& word) const {
    const int row = lane % 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = word(8 * j + 2 * i);
      stmatrix_x4(out + row * 64 + ((2 * j + lane / 16) ^ (row % 8)) * 8, w);
    }
  }
  // The same with rows and columns exchanged: `to` has a row for each column of the tile. A warpgroup's 64 rows by 64
  // columns go through its shared memory together.
  __device__ __forceinline__ void store_transposed(T* to, int64_t stride, int rows, int cols) {
    T* out = m.out[4 * number];
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      barrier_wait(1 + number, kWarpgroup);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int col = 16 * j + lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 32 * group + 8 * j + 2 * i;
          w[i] = pack_pair<T>(sums[at], sums[at + 1]);
        }
        stmatrix_x4_trans(out + col * 64 + (piece ^ col % 8) * 8, w);
      }
      barrier_wait(1 + number, kWarpgroup);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = 16 * warp + 4 * i + lane / 8, row = 64 * number + lane % 8 * 8;
        if (64 * group + col < cols && row < rows)
          *reinterpret_cast<uint4*>(to + (64 * group + col) * stride + row) =
              *reinterpret_cast<const uint4*>(out + col * 64 + (lane % 8 ^ col % 8) * 8);
      }
    }
  }
  // Which of 64 columns the sum `at` of them is.
  __device__ __forceinline__ int column_of(int at) const { return at / 4 * 8 + lane % 4 * 2 + at % 2; }

  // bias: of the tile's first of `cols` columns.
  __device__ __forceinline__ void add_bias(const T* bias, int cols, int first_sum, int sums_of) {
#pragma unroll
    for (int at = 0; at < 128; at += 4) {
      if (at < first_sum || at >= first_sum + sums_of) continue;
      const int col = column_of(at - first_sum);
      if (col >= cols) continue;
      const float low = to_float(bias[col]), high = to_float(bias[col + 1]);
      sums[at] += low, sums[at + 1] += high, sums[at + 2] += low, sums[at + 3] += high;
    }
  }
  __device__ __forceinline__ void store(T* to, int64_t stride, int rows, int cols) {
#pragma unroll
    for (int group = 0; group < 4; ++group)
      store_columns(to + 64 * group, stride, rows, cols - 64 * group, [&](T* out) {
        fill_by_words(out, [&](int at) { return pack_pair<T>(sums[32 * group + at], sums[32 * group + at + 1]); });
      });
  }
};

// The memory of a block that begins, its barriers ready. map: what TMA will read.
template <class T>
__device__ __forceinline__ Memory<T>& begin_block(const CUtensorMap& map) {
  extern __shared__ uint8_t raw[];
  auto& m = *reinterpret_cast<Memory<T>*>(raw + (1024 - shared_address(raw) % 1024) % 1024);
  if (threadIdx.x == 0) {
    prefetch_tensormap(map);
    m.init(kWarpgroup + 1);
  }
  __syncthreads();
  return m;
}

}  // namespace moe::gpu
