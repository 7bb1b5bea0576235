// Attention of one new token of a row over its cache, from the raw products: head norms and the rotary embedding of
// the new query heads and key, which goes to the cache with its value, then the keys. A cluster of blocks has one row's
// key head, each block a run of keys, read once for all query heads of the group. The blocks send each other their
// results, so that each has all parts of some elements, and sums them in a fixed order.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/cluster.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/reduce/softmax_state.cuh"
#include "kernels/decode/decode.h"

namespace decode::cuda {

using namespace kernels::gpu;

constexpr int kAttendWarps = 8, kAttendThreads = 32 * kAttendWarps;
constexpr float kLog2e = 1.44269504f;

// cos and sin of a head's elements lane + 32 i.
template <class T, int kDim>
struct HeadTables {
  static constexpr int kEach = kDim / 32;
  float cos[kEach], sin[kEach];
  __device__ __forceinline__ void load(const T* cosines, const T* sines, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) cos[i] = to_float(cosines[lane + 32 * i]), sin[i] = to_float(sines[lane + 32 * i]);
  }
};

// A head of the new token, or the weights of its norm, in the registers of a warp: number lane + 32 i.
template <class T, int kDim>
struct Head {
  static constexpr int kEach = kDim / 32;
  float f[kEach];

  __device__ __forceinline__ void load(const T* from, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) f[i] = to_float(from[lane + 32 * i]);
  }
  __device__ __forceinline__ void norm(const Head& weight, float eps) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += f[i] * f[i];
    const float rstd = rsqrtf(warp_sum(sum) / kDim + eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) f[i] = rounded<T>(rounded<T>(f[i] * rstd) * weight.f[i]);
  }
  __device__ __forceinline__ void rotate(const HeadTables<T, kDim>& t) {
#pragma unroll
    for (int i = 0; i < kEach / 2; ++i) {
      const int far = i + kEach / 2;
      const float a = f[i], b = f[far];
      f[i] = rounded<T>(a * t.cos[i] - b * t.sin[i]);
      f[far] = rounded<T>(b * t.cos[far] + a * t.sin[far]);
    }
  }
  __device__ __forceinline__ void put(float* to, float scale, int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[lane + 32 * i] = f[i] * scale;
  }
  __device__ __forceinline__ void store(T* to, int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[lane + 32 * i] = from_float<T>(f[i]);
  }
};

// The softmax state of some keys, and one element of the weighted values beside it.
struct SoftmaxPart {
  SoftmaxState<Exp2> state;
  float value = 0.f;
};
// States of kParts runs of keys, at(0), at(1), ..., as one: all are read at once.
template <int kParts, class At>
__device__ __forceinline__ SoftmaxPart merged(const At& at) {
  SoftmaxPart part[kParts], whole;
#pragma unroll
  for (int i = 0; i < kParts; ++i) part[i] = at(i), whole.state.max = fmaxf(whole.state.max, part[i].state.max);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float weight = part[i].state.weight_at(whole.state.max);
    whole.state.sum += part[i].state.sum * weight, whole.value += part[i].value * weight;
  }
  return whole;
}

// The softmax states so far of some keys, and eight elements of the weighted values, of each query head.
template <int kGroup>
struct Running {
  SoftmaxState<Exp2> state[kGroup];
  float value[kGroup][8];

  __device__ __forceinline__ Running() {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
#pragma unroll
      for (int i = 0; i < 8; ++i) value[g][i] = 0.f;
    }
  }
  // Scores become weights, of keys whose values are added next.
  template <int kKeys>
  __device__ __forceinline__ void weigh(float (&score)[kGroup][kKeys]) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      auto& [max, sum] = state[g];
      const float before = max;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) max = fmaxf(max, score[g][u]);
      const float base = finite_or_zero(max), shrink = exp2f(before - base);
      sum *= shrink;
#pragma unroll
      for (int i = 0; i < 8; ++i) value[g][i] *= shrink;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) score[g][u] = exp2f(score[g][u] - base), sum += score[g][u];
    }
  }
  // Merges with the state of the lane `apart` lanes further on.
  __device__ __forceinline__ void merge_lane(int apart) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      auto& [max, sum] = state[g];
      const float other = __shfl_xor_sync(kAllLanes, max, apart), larger = fmaxf(max, other);
      const float mine = larger == -INFINITY ? 0.f : exp2f(max - larger);
      const float theirs = larger == -INFINITY ? 0.f : exp2f(other - larger);
      // The same order of the two in both lanes, so that both have the same bits.
      const bool low = (threadIdx.x & unsigned(apart)) == 0;
      const auto both = [&](float v) {
        const float w = __shfl_xor_sync(kAllLanes, v, apart);
        return low ? v * mine + w * theirs : w * theirs + v * mine;
      };
      sum = both(sum);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[g][i] = both(value[g][i]);
      max = larger;
    }
  }
};

constexpr int kMaxSplits = 8;  // what every GPU with clusters takes

// How keys and values come. kCopies: by cp.async into shared memory, where products beside it want no L1; or loaded
// into registers, where they want it (few_rows.cuh: their weights come through L1, of which 64 KB here would leave too
// little).
template <bool kCopies>
struct AttendReads {
  static constexpr int kUnroll = kCopies ? 3 : 4;  // of a warp at once
  static constexpr int kStages = kCopies ? 3 : 1;  // and how many such are on their way
};

template <class T, int kDim, int kGroup, bool kCopies>
struct AttendMemory {
  using Reads = AttendReads<kCopies>;
  uint4 keys[Reads::kStages][Reads::kUnroll][kCopies ? kAttendThreads : 1];
  uint4 values[Reads::kStages][Reads::kUnroll][kCopies ? kAttendThreads : 1];
  float query[kGroup][kDim];  // scaled
  float fresh_key[kDim], fresh_value[kDim];
  float max[kAttendWarps][kGroup], sum[kAttendWarps][kGroup];
  float value[kAttendWarps][kGroup][kDim];
  // Written by the blocks of the cluster, a row each.
  float block_max[kMaxSplits][kGroup], block_sum[kMaxSplits][kGroup];
  float block_value[kMaxSplits][kGroup * kDim];  // of this block's elements alone
};

// How many of a key head's elements a block puts together: as many as the first one, or what is left.
__device__ __forceinline__ int share_of(int block, int blocks, int elements) {
  const int share = (elements + blocks - 1) / blocks;
  return min(share, elements - block * share);
}
// One thread of a block, before it says that it has begun: so many elements will be sent to it, counted by a barrier.
// (A barrier of the cluster behind plain stores would wait until all that its threads have written, the new key too, is
// in the GPU's memory.)
__device__ __forceinline__ void expect_values(Mbarrier& received, int count) {
  received.init(1);
  fence_mbarrier_init();
  received.arrive_expect_tx(uint32_t(count) * sizeof(float));
}
// Asks for rows [begin, end) of a key head, so that they are in L2 when they are loaded.
template <class T, int kDim>
__device__ __forceinline__ void prefetch_rows(const CacheRows& c, int64_t row, int key_head, int64_t begin,
                                              int64_t end) {
  constexpr int kLine = 128 / sizeof(T), kLines = kDim / kLine;
  const T* data = static_cast<const T*>(c.data) + row * c.batch + key_head * c.head;
#pragma unroll 1
  for (int64_t i = begin * kLines + threadIdx.x; i < end * kLines; i += kAttendThreads)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(data + i / kLines * c.row + i % kLines * kLine));
}

// Grid: rows * kv_heads * splits blocks, clusters of `splits`. Loops whose length is not known are not unrolled: they
// run once or twice, and between launches that read much the time that code takes to come is longer than theirs.
template <class T, int kDim, int kGroup, bool kCopies>
__global__ void __launch_bounds__(kAttendThreads) attend_kernel(const __grid_constant__ Layer a, const int splits) {
  constexpr int kLanes = kDim / 8, kKeys = 32 / kLanes;  // lanes a key, keys that a warp reads at once
  constexpr int kUnroll = AttendReads<kCopies>::kUnroll, kStages = AttendReads<kCopies>::kStages;
  constexpr int kStride = kAttendWarps * kKeys, kPass = kStride * kUnroll;
  extern __shared__ __align__(16) uint8_t raw[];
  auto& memory = *reinterpret_cast<AttendMemory<T, kDim, kGroup, kCopies>*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x % splits, key_head = blockIdx.x / splits % int(a.kv_heads);
  const int64_t row = blockIdx.x / splits / int(a.kv_heads);
  const int group = int(a.heads / a.kv_heads);

  // ---- prologue: the keys of this block, and what is read while the previous kernel runs
  const int share = share_of(0, splits, group * kDim);
  __shared__ Mbarrier received;
  if (splits > 1) {
    if (threadIdx.x == 0) expect_values(received, splits * (share_of(split, splits, group * kDim) + 2 * group));
    cluster_arrive_relaxed();
  }
  // The launch before has written the raw products and nothing else that is read here, and began when all before it was
  // done: the position, the tables and the older keys and values may be read already.
  const int64_t position = a.position[row * a.position_stride];
  const int64_t first = a.window < 0 ? 0 : max(int64_t{0}, position - a.window), keys = position + 1 - first;
  const int64_t each = int64_t{(uint32_t(keys) + splits - 1) / splits};
  const int64_t begin = min(position + 1, first + split * each), end = min(position + 1, begin + each);
  const int64_t old_end = min(end, position);  // the new key is not in the cache yet
  const int64_t queries = a.heads * kDim, fresh = queries + 2 * a.kv_heads * kDim;  // of a row of qkv
  const T* qkv = static_cast<const T*>(a.qkv) + row * fresh;
  const T* cos = static_cast<const T*>(a.cos) + row * a.rope_stride;
  const T* sin = static_cast<const T*>(a.sin) + row * a.rope_stride;
  const int dim = lane % kLanes * 8;
  const T* key_at = static_cast<const T*>(a.keys.data) + row * a.keys.batch + key_head * a.keys.head + dim;
  const T* value_at = static_cast<const T*>(a.values.data) + row * a.values.batch + key_head * a.values.head + dim;

  // ---- producer: the keys and values of the next passes
  // Each lane copies what it reads itself, so that none waits for another.
  Pack<T, 8> key_now[kCopies ? 1 : kUnroll], value_now[kCopies ? 1 : kUnroll];
  const int64_t own = begin + warp * kKeys + lane / kLanes;
  const auto issue = [&](int pass) {
    const int stage = pass % kStages;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = own + pass * kPass + u * kStride;
      if (at >= old_end) continue;
      if constexpr (kCopies) {
        cp_async(&memory.keys[stage][u][threadIdx.x], key_at + at * a.keys.row, false);
        cp_async(&memory.values[stage][u][threadIdx.x], value_at + at * a.values.row, false);
      } else {
        key_now[u] = load<8>(key_at + at * a.keys.row);
        value_now[u] = load<8>(value_at + at * a.values.row);
      }
    }
    if constexpr (kCopies) cp_async_commit();
  };
  constexpr int kAhead = kCopies ? kStages - 1 : 1;  // passes asked for before the first is worked on
#pragma unroll
  for (int pass = 0; pass < kAhead; ++pass) issue(pass);
  prefetch_rows<T, kDim>(a.keys, row, key_head, begin + kAhead * kPass, old_end);
  prefetch_rows<T, kDim>(a.values, row, key_head, begin + kAhead * kPass, old_end);
  const bool has_fresh = begin <= position && position < end;  // the block that sees the new key also writes it
  HeadTables<T, kDim> tables;
  tables.load(cos, sin, lane);
  Head<T, kDim> q_norm, k_norm;
  if (a.q_norm != nullptr) q_norm.load(static_cast<const T*>(a.q_norm), lane);
  if (a.k_norm != nullptr) k_norm.load(static_cast<const T*>(a.k_norm), lane);
  const int first_block = int(threadIdx.x) / share, first_element = int(threadIdx.x) % share;

  // ---- prologue: the queries, normed and rotated; the new key and value, which also go into the cache
  grid_dependency_wait();
  launch_dependents();

#pragma unroll 1
  for (int i = warp; i < group + 2; i += kAttendWarps) {
    Head<T, kDim> head;
    if (i < group) {
      head.load(qkv + (key_head * group + i) * kDim, lane);
      if (a.q_norm != nullptr) head.norm(q_norm, a.head_eps);
      head.rotate(tables);
      head.put(memory.query[i], a.scale * kLog2e, lane);
    } else if (has_fresh && i == group) {
      head.load(qkv + queries + key_head * kDim, lane);
      if (a.k_norm != nullptr) head.norm(k_norm, a.head_eps);
      head.rotate(tables);
      head.put(memory.fresh_key, 1.f, lane);
      head.store(static_cast<T*>(a.keys.data) + row * a.keys.batch + position * a.keys.row + key_head * a.keys.head,
                 lane);
    } else if (has_fresh) {
      head.load(qkv + queries + (a.kv_heads + key_head) * kDim, lane);
      head.put(memory.fresh_value, 1.f, lane);
      head.store(
          static_cast<T*>(a.values.data) + row * a.values.batch + position * a.values.row + key_head * a.values.head,
          lane);
    }
  }
#pragma unroll 1
  for (int i = group * kDim + threadIdx.x; i < kGroup * kDim; i += kAttendThreads)
    memory.query[i / kDim][i % kDim] = 0.f;
  __syncthreads();

  // ---- consumer: scores of a pass, the softmax state, the values' sums
  float query[kGroup][8];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
#pragma unroll
    for (int i = 0; i < 8; ++i) query[g][i] = memory.query[g][dim + i];
  }
  Running<kGroup> running;
  const auto score_of = [&](const float(&f)[8], int g) {
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) s += query[g][i] * f[i];
#pragma unroll
    for (int o = kLanes / 2; o > 0; o /= 2) s += __shfl_xor_sync(kAllLanes, s, o);
    return s;
  };
  const int64_t passes = (old_end - begin - warp * kKeys + kPass - 1) / kPass;
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    const int stage = pass % kStages;
    const int64_t key = own + pass * kPass;
    if constexpr (kCopies) cp_async_wait<kAhead - 1>();
    float score[kGroup][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float f[8];
      if constexpr (kCopies)
        unpack<T, 8>(*reinterpret_cast<const Pack<T, 8>*>(&memory.keys[stage][u][threadIdx.x]), f);
      else
        unpack<T, 8>(key_now[u], f);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float s = score_of(f, g);
        score[g][u] = key + u * kStride < old_end ? s : -INFINITY;
      }
    }
    running.weigh(score);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (key + u * kStride >= old_end) continue;  // what lies there may be no number
      float f[8];
      if constexpr (kCopies)
        unpack<T, 8>(*reinterpret_cast<const Pack<T, 8>*>(&memory.values[stage][u][threadIdx.x]), f);
      else
        unpack<T, 8>(value_now[u], f);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
#pragma unroll
        for (int i = 0; i < 8; ++i) running.value[g][i] += score[g][u] * f[i];
      }
    }
    issue(pass + kAhead);
  }

  // ---- consumer: the new key
  if (has_fresh &&
      warp == kAttendWarps - 1) {  // the new key, by the first lanes of a warp that has no more than others
    float f[8], score[kGroup][1];
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] = memory.fresh_key[dim + i];
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      const float s = score_of(f, g);
      score[g][0] = lane < kLanes ? s : -INFINITY;
    }
    running.weigh(score);
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
#pragma unroll
      for (int i = 0; i < 8; ++i) running.value[g][i] += score[g][0] * memory.fresh_value[dim + i];
    }
  }

  // ---- epilogue: the softmax states of lanes and warps merge, then those of the blocks of a cluster (split-KV)
#pragma unroll
  for (int apart = kLanes; apart < 32; apart *= 2) running.merge_lane(apart);
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (lane == 0) memory.max[warp][g] = running.state[g].max, memory.sum[warp][g] = running.state[g].sum;
    if (lane >= kLanes) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) memory.value[warp][g][dim + i] = running.value[g][i];
  }
  __syncthreads();

  T* out = static_cast<T*>(a.attended) + row * queries + key_head * group * kDim;
  if (splits > 1) cluster_wait();
#pragma unroll 1
  for (int i = threadIdx.x, block = first_block, element = first_element; i < group * kDim;
       i += kAttendThreads, block = i / share, element = i % share) {
    const int g = i / kDim, d = i % kDim;
    const SoftmaxPart whole = merged<kAttendWarps>([&](int w) {
      return SoftmaxPart{{memory.max[w][g], memory.sum[w][g]}, memory.value[w][g][d]};
    });
    if (splits == 1) {
      out[i] = from_float<T>(whole.value / whole.state.sum);
      continue;
    }
    st_async_cluster(block, memory.block_value[split][element], whole.value, received);
    if (d >= splits) continue;
    st_async_cluster(d, memory.block_max[split][g], whole.state.max, received);
    st_async_cluster(d, memory.block_sum[split][g], whole.state.sum, received);
  }
  if (splits == 1) return;
  received.wait(0);
#pragma unroll 1
  for (int element = threadIdx.x; element < min(share, group * kDim - split * share); element += kAttendThreads) {
    const int i = split * share + element, g = i / kDim, last = splits - 1;
    const SoftmaxPart whole = merged<kMaxSplits>([&](int block) {
      const int b = min(block, last);
      const float max = memory.block_max[b][g];
      return SoftmaxPart{{block < splits ? max : -INFINITY, memory.block_sum[b][g]}, memory.block_value[b][element]};
    });
    out[i] = from_float<T>(whole.value / whole.state.sum);
  }
}

// Blocks of a cluster: as many as keep the multiprocessors busy.
inline int attend_splits(int64_t blocks, int sms) {
  int splits = 1;
  while (splits < kMaxSplits && blocks * splits * 2 <= sms) splits *= 2;
  return splits;
}

// A kernel of this grid, with so much shared memory.
template <auto kKernel, bool kMaxShared>
void launch_attend(int64_t bytes, const Layer& a, kernels::Stream stream) {
  const int64_t blocks = a.rows * a.kv_heads;
  const bool clusters = attribute<cudaDevAttrComputeCapabilityMajor>() >= 9;
  const int splits = clusters ? attend_splits(blocks, multiprocessors()) : 1;
  launch_after_with_memory<kKernel, kMaxShared>(bytes, blocks * splits, kAttendThreads, splits, stream, a, splits);
}

template <class T, int kDim, int kGroup, bool kCopies>
void attend(const Layer& a, kernels::Stream stream) {
  launch_attend<attend_kernel<T, kDim, kGroup, kCopies>, /*kMaxShared=*/kCopies>(
      sizeof(AttendMemory<T, kDim, kGroup, kCopies>), a, stream);
}

}  // namespace decode::cuda
