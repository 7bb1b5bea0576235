// Rows that a block, or on sm_90 a cluster of blocks, goes through one after another. Each thread has a ring in shared
// memory that it fills for itself, so that the next rows are on their way while one is worked on. What all threads of
// a row compute travels between blocks while the next row's part of it is made: one exchange a row.
//
//   fill the ring; make row 0's value; send it
//   for each row:  make the next row's value;  receive this row's;  send the next one's;  write this row;  refill
#pragma once

#include "kernels/common/gpu/reduce/softmax_state.cuh"
#include "kernels/common/gpu/tile/copy_async.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "kernels/common/gpu/ptx/cluster.cuh"
#endif

namespace kernels::gpu {

template <bool kCluster>
__device__ __forceinline__ int blocks_of_row() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster) return int(cluster_nctarank());
#endif
  return 1;
}
template <bool kCluster>
__device__ __forceinline__ int rank_in_row() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster) return int(cluster_ctarank());
#endif
  return 0;
}

// Where a thread stands in its rows, and its ring: [kDepth][kTensors][kVectors][threads] vectors of 16 bytes. kThreads:
// those of the block where they are known when this is compiled, which spares most of the arithmetic of addresses.
template <class T, int kTensors, int kVectors, int kDepth, int kThreads = 0>
class StreamedRows {
 public:
  static constexpr int N = kPerVector<T>;

  __device__ StreamedRows(uint4* ring, int64_t vectors, int rank)
      : ring_(ring + threadIdx.x),
        lanes_(int(blockDim.x)),
        first_(rank * kVectors * lanes() + int(threadIdx.x)),
        vectors_(int(vectors)) {}
  __device__ __forceinline__ int vector(int k) const { return first_ + k * lanes(); }  // of the row
  __device__ __forceinline__ int64_t element(int k) const { return int64_t{first_} * N + k * lanes() * N; }
  __device__ __forceinline__ bool has(int k) const { return vector(k) < vectors_; }
  // A row sets out; `from(tensor, k)` is the address of its vector k. Without a row only the count of copies goes on.
  template <class From>
  __device__ __forceinline__ void fetch(int slot, bool has_row, const From& from) const {
    if (has_row) {
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
#pragma unroll
        for (int k = 0; k < kVectors; ++k) {
          if (has(k)) copy_async(at(slot, t, k), from(t, k));
        }
      }
    }
    copy_async_commit();
  }
  __device__ __forceinline__ Pack<T, N> get(int slot, int tensor, int k) const {
    const uint4 v = *at(slot, tensor, k);
    Pack<T, N> p;
    p.w[0] = v.x, p.w[1] = v.y, p.w[2] = v.z, p.w[3] = v.w;
    return p;
  }
  // Before the first fetch: the vectors that the row does not have become `word` in all slots, so that what is made of
  // a row needs no branches. Memory may be read from here on.
  __device__ __forceinline__ void begin(uint32_t word) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (has(k)) continue;
      for (int slot = 0; slot < kDepth; ++slot) {
        for (int t = 0; t < kTensors; ++t) *at(slot, t, k) = make_uint4(word, word, word, word);
      }
    }
    grid_dependency_wait();
  }
  static __device__ __forceinline__ int next(int slot) { return slot == kDepth - 1 ? 0 : slot + 1; }

 private:
  __device__ __forceinline__ int lanes() const { return kThreads > 0 ? kThreads : lanes_; }
  __device__ __forceinline__ uint4* at(int slot, int tensor, int k) const {
    return ring_ + slot * (kTensors * kVectors * lanes()) + (tensor * kVectors + k) * lanes();
  }
  uint4* ring_;
  int lanes_, first_, vectors_;
};

// ---- what all threads of a row compute: values that merge, the same bits in any order of a pair
template <int kSums>
struct Sums {
  static constexpr int kCount = kSums;
  float v[kSums] = {};

  __device__ __forceinline__ void merge(const Sums& other) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) v[i] += other.v[i];
  }
  // Over the lanes of a warp that are a multiple of kStep apart, in groups of kEnd lanes.
  template <int kStep, int kEnd = 32>
  __device__ __forceinline__ void over_lanes() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
#pragma unroll
      for (int o = kEnd / 2; o >= kStep; o /= 2) v[i] += __shfl_xor_sync(kAllLanes, v[i], o);
    }
  }
};

// count, mean and squared distances from it.
struct Moments {
  static constexpr int kCount = 3;
  float v[3] = {};

  static __device__ __forceinline__ float mean_of(float total, float count) {
    return count > 0.f ? __fdividef(total, count) : 0.f;
  }
  __device__ __forceinline__ void merge(const Moments& other) {
    const float count = v[0] + other.v[0], mean = mean_of(v[0] * v[1] + other.v[0] * other.v[1], count);
    const float mine = v[1] - mean, its = other.v[1] - mean;
    v[2] = (v[2] + v[0] * mine * mine) + (other.v[2] + other.v[0] * its * its);
    v[0] = count, v[1] = mean;
  }
  template <int kStep, int kEnd = 32>
  __device__ __forceinline__ void over_lanes() {
    Sums<2> whole{{v[0], v[0] * v[1]}};
    whole.over_lanes<kStep, kEnd>();
    const float mean = mean_of(whole.v[1], whole.v[0]), off = v[1] - mean;
    Sums<1> distances{{v[2] + v[0] * off * off}};
    distances.over_lanes<kStep, kEnd>();
    v[0] = whole.v[0], v[1] = mean, v[2] = distances.v[0];
  }
};

// kStates softmax states {max, sum}, then kSums sums, in one array that blocks exchange.
template <int kStates, int kSums, class Exp>
struct SoftmaxSums {
  using State = SoftmaxState<Exp>;
  static constexpr int kCount = 2 * kStates + kSums;
  float v[kCount];

  __device__ SoftmaxSums() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = i < 2 * kStates && i % 2 == 0 ? -INFINITY : 0.f;
  }
  __device__ __forceinline__ float max(int k) const { return v[2 * k]; }
  __device__ __forceinline__ float sum(int k) const { return v[2 * k + 1]; }
  __device__ __forceinline__ State state(int k) const { return {v[2 * k], v[2 * k + 1]}; }
  __device__ __forceinline__ void merge(const SoftmaxSums& other) {
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      State mine = state(k);
      mine.merge(other.state(k));
      v[2 * k] = mine.max, v[2 * k + 1] = mine.sum;
    }
#pragma unroll
    for (int i = 2 * kStates; i < kCount; ++i) v[i] += other.v[i];
  }
  template <int kStep, int kEnd = 32>
  __device__ __forceinline__ void over_lanes() {
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      float max = v[2 * k];
#pragma unroll
      for (int o = kEnd / 2; o >= kStep; o /= 2) max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, o));
      v[2 * k + 1] *= state(k).weight_at(max);
      v[2 * k] = max;
    }
#pragma unroll
    for (int i = 1; i < kCount; i += i < 2 * kStates - 1 ? 2 : 1) {
#pragma unroll
      for (int o = kEnd / 2; o >= kStep; o /= 2) v[i] += __shfl_xor_sync(kAllLanes, v[i], o);
    }
  }
};

// Values of a row's warps become the row's, in every thread. kBundle rows may share the warps, each with a value of its
// own. send() and receive() take turns; two buffers do, too: who sends to one for the second time has heard from all
// warps of every block since, and each of them had read it before it sent that.
//
// In a cluster no warp but the first waits for its block. With a barrier of the block in send() all of them would need
// the same units at the same time, and leave the others idle: a quarter of JSD's time, a tenth of GroupNorm's.
template <class Value, bool kCluster, int kBundle = 1, int kBlocks = 8>
class RowExchange {
 public:
  static constexpr int kMaxBlocks = kBlocks, kMaxWarps = 16;
  static_assert(kBundle * kMaxBlocks <= 32);
  struct Memory {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    Mbarrier of_block[2];  // its warps have written
    Mbarrier full[2];      // the blocks' values have come; this block's first warp has read what its warps had written
#endif
    float warps[2][kMaxWarps][kBundle][Value::kCount], blocks[2][kMaxBlocks][kBundle][Value::kCount];
  };
  __device__ explicit RowExchange(Memory& memory) : memory_(memory) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) {
      if (threadIdx.x == 0) {
        for (Mbarrier& of_block : memory.of_block) of_block.init(int(blockDim.x) / 32 * kBundle);
        for (Mbarrier& full : memory.full) full.init(1 + 32), full.arrive_expect_tx(bytes());
        fence_mbarrier_init();
      }
      cluster_arrive_relaxed();
      cluster_wait();
    }
#endif
  }
  // A warp's value, in one of its lanes for each row of a bundle (`writes`).
  __device__ __forceinline__ void send(const Value& mine, bool writes, int of_bundle = 0) {
    if (writes) {
#pragma unroll
      for (int i = 0; i < Value::kCount; ++i) memory_.warps[turn_][threadIdx.x / 32][of_bundle][i] = mine.v[i];
    }
    if constexpr (!kCluster) __syncthreads();
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) {
      if (writes) memory_.of_block[turn_].arrive();
      if (threadIdx.x >= 32) return;
      __syncwarp();
      memory_.of_block[turn_].wait(parity_);
      const Value all = of_warps();
      const int block = int(threadIdx.x) / kBundle, row = int(threadIdx.x) % kBundle;
      if (block < int(cluster_nctarank())) {
        float* there = memory_.blocks[turn_][cluster_ctarank()][row];
#pragma unroll
        for (int i = 0; i < Value::kCount; ++i)
          st_async_cluster(uint32_t(block), there[i], all.v[i], memory_.full[turn_]);
      }
      memory_.full[turn_].arrive();
    }
#endif
  }
  __device__ __forceinline__ Value receive(int of_bundle = 0) {
    Value all;
    if constexpr (kCluster) {
#if __CUDA_ARCH__ >= 900
      memory_.full[turn_].wait(parity_);
      const int lane = int(threadIdx.x) % (kMaxBlocks * kBundle), block = lane / kBundle;
      if (block < int(cluster_nctarank())) {
#pragma unroll
        for (int i = 0; i < Value::kCount; ++i) all.v[i] = memory_.blocks[turn_][block][lane % kBundle][i];
      }
      all.template over_lanes<kBundle, kMaxBlocks * kBundle>();
      if (threadIdx.x == 0) memory_.full[turn_].arrive_expect_tx(bytes());
      parity_ ^= uint32_t(turn_);
#endif
    } else {
      all = of_warps();
    }
    if constexpr (kBundle > 1) {
#pragma unroll
      for (int i = 0; i < Value::kCount; ++i) all.v[i] = __shfl_sync(kAllLanes, all.v[i], of_bundle);
    }
    turn_ ^= 1;
    return all;
  }
  // No block may end while others still send to it.
  __device__ __forceinline__ void end() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kCluster) cluster_sync();
#endif
  }

 private:
  static __device__ __forceinline__ uint32_t bytes() { return blocks_of_row<kCluster>() * kBundle * Value::kCount * 4; }
  // In lane i that of row i % kBundle.
  __device__ __forceinline__ Value of_warps() const {
    const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
    Value all;
    if constexpr (kBundle == 1) {
      if (lane % kMaxWarps < warps) read(all, lane % kMaxWarps, 0);
      all.template over_lanes<1, kMaxWarps>();
      return all;
    } else {
      for (int w = lane / kBundle; w < warps; w += 32 / kBundle) {
        Value one;
        read(one, w, lane % kBundle);
        all.merge(one);
      }
      all.template over_lanes<kBundle>();
      return all;
    }
  }
  __device__ __forceinline__ void read(Value& to, int warp, int row) const {
#pragma unroll
    for (int i = 0; i < Value::kCount; ++i) to.v[i] = memory_.warps[turn_][warp][row][i];
  }
  Memory& memory_;
  int turn_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace kernels::gpu
