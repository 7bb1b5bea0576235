// Rows that are held in registers from their only load to their store: by a part of a warp, a block, or on sm_90 a
// cluster of blocks, and what the threads of a row compute together.
#pragma once

#include "kernels/common/gpu/reduce/softmax_state.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "kernels/common/gpu/ptx/cluster.cuh"
#endif

namespace kernels::gpu {

// kGroups: several rows share a block, each a part of a warp. kCluster: the blocks of a cluster share a row.
enum class Hold : uint8_t { kGroups, kBlock, kCluster };

constexpr int held_threads(Hold hold) { return hold == Hold::kGroups ? 128 : 512; }

// Blocks that registers are shared out among: two of the largest, so that one's barriers hide behind another's loads.
constexpr int held_blocks(Hold hold) { return hold == Hold::kGroups ? 8 : 2; }

// Where a thread stands: kVectors vectors of N columns, `lanes` vectors apart.
template <class T, int kVectors, Hold kHold>
struct HeldPosition {
  static constexpr int N = kPerVector<T>;
  int64_t row, cols, first;
  int lanes, lane;
  bool has_row;

  __device__ HeldPosition(int64_t rows, int64_t cols, int lanes) : cols(cols), first(0) {
    this->lanes = kHold == Hold::kGroups ? lanes : int(blockDim.x);
    lane = int(threadIdx.x);
    row = blockIdx.x;
    if constexpr (kHold == Hold::kGroups) {
      row = row * (int(blockDim.x) / lanes) + lane / lanes;
      lane %= lanes;
    }
    if constexpr (kHold == Hold::kCluster) {
#if __CUDA_ARCH__ >= 900
      const unsigned blocks = cluster_nctarank();
      row = blockIdx.x / blocks;
      first = int64_t{cluster_ctarank()} * kVectors * this->lanes * N;
#endif
    }
    has_row = row < rows;
  }
  __device__ __forceinline__ int64_t col(int k) const { return first + int64_t{k * lanes + lane} * N; }
  __device__ __forceinline__ bool has(int k) const { return has_row && col(k) < cols; }
};

template <class T>
constexpr uint32_t kLowestWord = sizeof(T) == 4                ? 0xff800000u
                                 : std::is_same_v<T, BFloat16> ? 0xff80ff80u
                                                               : 0xfc00fc00u;  // -infinity

template <class T, int N>
__device__ __forceinline__ Pack<T, N> pack_of_words(uint32_t word) {
  Pack<T, N> v;
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T) / 4); ++i) v.w[i] = word;
  return v;
}

// `none` where there is no row or column.
template <class T, int kVectors, class Place>
__device__ __forceinline__ void fetch_row(Pack<T, kPerVector<T>> (&v)[kVectors], const void* data, int64_t stride,
                                          const Place& p, uint32_t none) {
  const T* at = static_cast<const T*>(data) + p.row * stride;
#pragma unroll
  for (int k = 0; k < kVectors; ++k)
    v[k] = p.has(k) ? load_evict_last<kPerVector<T>>(at + p.col(k)) : pack_of_words<T, kPerVector<T>>(none);
}
template <class T, int kVectors, class Place>
__device__ __forceinline__ void store_row(void* data, const Place& p, const Pack<T, kPerVector<T>> (&v)[kVectors]) {
  T* at = static_cast<T*>(data) + p.row * p.cols;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (p.has(k)) store(at + p.col(k), v[k]);
  }
}

// Elements unpacked before are unpacked again (forget).
template <class T, int N, int kVectors>
__device__ __forceinline__ void forget_row(Pack<T, N> (&v)[kVectors]) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) force_reunpack(v[k]);
}

// What the threads of a row compute together, the same bits in each of them. Two buffers take turns, so that one
// barrier is enough.
template <Hold kHold>
class RowReduction {
 public:
  static constexpr int kMax = 4, kMaxBlocks = 8;
  struct Memory {
    float warps[2][kMax][32], blocks[2][kMax][kMaxBlocks];
  };
  __device__ RowReduction(Memory& memory, int lanes) : memory_(memory), lanes_(lanes) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kHold == Hold::kCluster) cluster_arrive_relaxed();
#endif
  }

  template <int kSums>
  __device__ __forceinline__ void sum(float (&v)[kSums]) {
    reduce(v, plus(), 0.f);
  }
  template <int kNumbers>
  __device__ __forceinline__ void max(float (&v)[kNumbers]) {
    reduce(v, larger(), -INFINITY);
  }
  // Of kStates softmaxes at once; mine[k].max is the same in all threads of a warp, or of the row where a warp has
  // several.
  template <int kStates>
  __device__ __forceinline__ void merge(SoftmaxState<> (&mine)[kStates]) {
    float both[2 * kStates];
#pragma unroll
    for (int k = 0; k < kStates; ++k) both[2 * k] = mine[k].max, both[2 * k + 1] = of_lanes(mine[k].sum, plus());
    float none[2 * kStates] = {};
#pragma unroll
    for (int k = 0; k < kStates; ++k) none[2 * k] = -INFINITY;
    exchange(
        both, none,
        [&](float(&v)[2 * kStates]) {
#pragma unroll
          for (int k = 0; k < kStates; ++k) {
            const float max = in_warp(v[2 * k], larger()), weight = expf(v[2 * k] - finite_or_zero(max));
            v[2 * k + 1] = in_warp(v[2 * k + 1] * weight, plus());
            v[2 * k] = max;
          }
        },
        [&](const auto& of_block, unsigned blocks) {
#pragma unroll
          for (int k = 0; k < kStates; ++k) {
            SoftmaxState<> all;
            for (unsigned b = 0; b < blocks; ++b) all.max = fmaxf(all.max, of_block[2 * k][b]);
            for (unsigned b = 0; b < blocks; ++b)
              all.sum += of_block[2 * k + 1][b] * expf(of_block[2 * k][b] - finite_or_zero(all.max));
            both[2 * k] = all.max, both[2 * k + 1] = all.sum;
          }
        });
#pragma unroll
    for (int k = 0; k < kStates; ++k) mine[k] = {both[2 * k], both[2 * k + 1]};
  }
  // Over the threads of a row that are in one warp.
  __device__ __forceinline__ float warp_part(float v) { return of_lanes(v, plus()); }
  // The mean and the squared distances from it of `count` elements; mine: what the threads of a row in this warp have.
  struct Moments {
    float count, mean, distances;
  };
  __device__ __forceinline__ Moments moments(const Moments& mine) {
    float v[3] = {mine.count, mine.mean, mine.distances};
    const float none[3] = {};
    const auto mean_of = [](float total, float count) { return count > 0.f ? total / count : 0.f; };
    exchange(
        v, none,
        [&](float(&w)[3]) {
          const float count = in_warp(w[0], plus()), mean = mean_of(in_warp(w[0] * w[1], plus()), count);
          w[2] = in_warp(w[2] + w[0] * (w[1] - mean) * (w[1] - mean), plus());
          w[0] = count, w[1] = mean;
        },
        [&](const auto& of_block, unsigned blocks) {
          float count = 0.f, total = 0.f, distances = 0.f;
          for (unsigned b = 0; b < blocks; ++b) count += of_block[0][b], total += of_block[0][b] * of_block[1][b];
          const float mean = mean_of(total, count);
          for (unsigned b = 0; b < blocks; ++b) {
            const float off = of_block[1][b] - mean;
            distances += of_block[2][b] + of_block[0][b] * off * off;
          }
          v[0] = count, v[1] = mean, v[2] = distances;
        });
    return {v[0], v[1], v[2]};
  }

 private:
  static __device__ __forceinline__ auto plus() {
    return [](float a, float b) { return a + b; };
  }
  static __device__ __forceinline__ auto larger() {
    return [](float a, float b) { return fmaxf(a, b); };
  }
  template <class Op>
  static __device__ __forceinline__ float in_warp(float v, const Op& op) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, o));
    return v;
  }
  // Over the threads of a row that are in one warp.
  template <class Op>
  __device__ __forceinline__ float of_lanes(float v, const Op& op) {
    if constexpr (kHold == Hold::kGroups) {
      for (int o = lanes_ / 2; o > 0; o /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, o));
      return v;
    } else {
      return in_warp(v, op);
    }
  }
  template <int kCount, class Op>
  __device__ __forceinline__ void reduce(float (&v)[kCount], const Op& op, float neutral) {
    float none[kCount];
#pragma unroll
    for (int s = 0; s < kCount; ++s) none[s] = neutral, v[s] = of_lanes(v[s], op);
    exchange(
        v, none,
        [&](float(&w)[kCount]) {
#pragma unroll
          for (int s = 0; s < kCount; ++s) w[s] = in_warp(w[s], op);
        },
        [&](const auto& of_block, unsigned blocks) {
#pragma unroll
          for (int s = 0; s < kCount; ++s) {
            v[s] = of_block[s][0];
            for (unsigned b = 1; b < blocks; ++b) v[s] = op(v[s], of_block[s][b]);
          }
        });
  }
  // v of every warp in the lanes of each (`none` in those past the last warp), joined by over_warps; then what the
  // blocks of the cluster have so, joined by over_blocks.
  template <int kCount, class OverWarps, class OverBlocks>
  __device__ __forceinline__ void exchange(float (&v)[kCount], const float (&none)[kCount], const OverWarps& over_warps,
                                           const OverBlocks& over_blocks) {
    static_assert(kCount <= kMax);
    if constexpr (kHold == Hold::kGroups) return;
    const int warps = int(blockDim.x) / 32, lane = int(threadIdx.x) % 32;
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kCount; ++s) memory_.warps[turn_][s][threadIdx.x / 32] = v[s];
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kCount; ++s) v[s] = lane < warps ? memory_.warps[turn_][s][lane] : none[s];
    over_warps(v);
#if __CUDA_ARCH__ >= 900
    if constexpr (kHold == Hold::kCluster) {
      const unsigned blocks = cluster_nctarank(), rank = cluster_ctarank();
      if (!all_began_) cluster_wait();
      all_began_ = true;
      if (threadIdx.x < blocks) {
#pragma unroll
        for (int s = 0; s < kCount; ++s) st_shared_cluster(threadIdx.x, memory_.blocks[turn_][s][rank], v[s]);
      }
      cluster_sync();
      over_blocks(memory_.blocks[turn_], blocks);
    }
#endif
    turn_ ^= 1;
  }

  Memory& memory_;
  int lanes_, turn_ = 0;
  bool all_began_ = false;
};

}  // namespace kernels::gpu
