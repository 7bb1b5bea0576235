// The same attention as sm90_attend.cuh's by matrix instructions: a warp takes 16 keys at a time, and every query head
// of the group is a row of the product. An eighth of the instructions, which is what several rows and long caches wait
// for.
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/decode/cuda/sm90_attend.cuh"

namespace decode::cuda {

constexpr int kTileKeys = 16, kTileStages = 2;  // keys of a warp at once, and how many such are on their way

template <class T, int kDim, int kGroup, int kStages>
struct AttendTiles {
  // Of each warp: 16 keys and their values, vectors of a row exchanged so that ldmatrix meets no bank twice.
  uint4 keys[kStages][kAttendWarps][kTileKeys * kDim / 8], values[kStages][kAttendWarps][kTileKeys * kDim / 8];
  T query[8][kDim + 8];
  float fresh_value[kDim];
  float max[kAttendWarps + 1][kGroup], sum[kAttendWarps + 1][kGroup];  // the last: the new key
  float value[kAttendWarps][kGroup][kDim];
  float block_max[kMaxSplits][kGroup], block_sum[kMaxSplits][kGroup];
  float block_value[kMaxSplits][kGroup * kDim];
};

// All threads: this block has begun.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// To the same place of another block's shared memory.
__device__ __forceinline__ void send(float* place, int block, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mapa(block, place)), "f"(v) : "memory");
}

template <class T, int kDim, int kGroup, int kStages>
__global__ void __launch_bounds__(kAttendThreads, 2)
    attend_tiles_kernel(const __grid_constant__ Layer a, const int splits) {
  constexpr int kVectors = kDim / 8, kTiles = kDim / 8, kSteps = kDim / 16, kPass = kAttendWarps * kTileKeys;
  extern __shared__ __align__(16) uint8_t raw[];
  auto& memory = *reinterpret_cast<AttendTiles<T, kDim, kGroup, kStages>*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x % splits, key_head = blockIdx.x / splits % int(a.kv_heads);
  const int64_t row = blockIdx.x / splits / int(a.kv_heads);
  const int group = int(a.heads / a.kv_heads);

  // ---- prologue: the keys of this block, and what is read while the previous kernel runs
  if (splits > 1) cluster_arrive();  // nobody sends to a block that has not begun
  // The launch before has written the raw products and nothing else that is read here, and began when all before it was
  // done: the position, the tables and the older keys and values may be read already.
  const int64_t position = a.position[row * a.position_stride];
  const int64_t first = a.window < 0 ? 0 : max(int64_t{0}, position - a.window), old_keys = position - first;
  const int64_t tiles_each = (old_keys + splits * kTileKeys - 1) / (splits * kTileKeys);
  const int64_t begin = min(position, first + split * tiles_each * kTileKeys);
  const int64_t end = min(position, begin + tiles_each * kTileKeys);
  const bool has_fresh =
      split == splits - 1;  // this block sees the new key, which is not in the cache yet, and writes it
  const int64_t queries = a.heads * kDim, fresh = queries + 2 * a.kv_heads * kDim;  // of a row of qkv
  const T* qkv = static_cast<const T*>(a.qkv) + row * fresh;
  const T* cos = static_cast<const T*>(a.cos) + row * a.rope_stride;
  const T* sin = static_cast<const T*>(a.sin) + row * a.rope_stride;
  const T* key_at = static_cast<const T*>(a.keys.data) + row * a.keys.batch + key_head * a.keys.head;
  const T* value_at = static_cast<const T*>(a.values.data) + row * a.values.batch + key_head * a.values.head;
  const int64_t own = begin + warp * kTileKeys;
  const int passes = own < end ? int((end - own + kPass - 1) / kPass) : 0;
  // A lane has the same vector of every other (fourth) key of a tile.
  constexpr int kApart = 32 / kVectors;
  const int lane_key = lane / kVectors, lane_vector = lane % kVectors;
  const T *next_key = key_at + (own + lane_key) * a.keys.row + lane_vector * 8,
          *next_value = value_at + (own + lane_key) * a.values.row + lane_vector * 8;
  int left = int(min(end - own, int64_t{1} << 30)) - lane_key;  // keys from this lane's first of the next tile on

  // ---- producer: each warp copies its own tiles, kStages ahead
  const auto issue = [&](int stage) {
    uint4 *k = memory.keys[stage][warp], *v = memory.values[stage][warp];
    if (left > -lane_key) {
#pragma unroll
      for (int i = 0; i < kTileKeys / kApart; ++i) {
        const int r = lane_key + i * kApart, to = r * kVectors + (lane_vector ^ (r % 8));
        const bool zeros = i * kApart >= left;  // what lies there may be no number
        cp_async(k + to, zeros ? key_at : next_key + i * kApart * a.keys.row, zeros);
        cp_async(v + to, zeros ? value_at : next_value + i * kApart * a.values.row, zeros);
      }
    }
    cp_async_commit();
    next_key += kPass * a.keys.row, next_value += kPass * a.values.row, left -= kPass;
  };
#pragma unroll 1
  for (int stage = 0; stage < kStages; ++stage) issue(stage);
  HeadTables<T, kDim> tables;
  tables.load(cos, sin, lane);
  Head<T, kDim> q_norm, k_norm;
  if (a.q_norm != nullptr) q_norm.load(static_cast<const T*>(a.q_norm), lane);
  if (a.k_norm != nullptr) k_norm.load(static_cast<const T*>(a.k_norm), lane);

  // ---- prologue: the queries, normed and rotated; the new key and value, which also go into the cache
  grid_dependency_wait();
  launch_dependents();

  // A warp a query head; where the new key is seen each makes it for itself. Warp 0 writes it.
  if (warp < group || (has_fresh && warp == kAttendWarps - 1)) {
    Head<T, kDim> head, key, value;
    if (warp < group) head.load(qkv + (key_head * group + warp) * kDim, lane);
    if (has_fresh) key.load(qkv + queries + key_head * kDim, lane);
    if (has_fresh && warp == kAttendWarps - 1) {
      value.load(qkv + queries + (a.kv_heads + key_head) * kDim, lane);
      value.put(memory.fresh_value, 1.f, lane);
      value.store(
          static_cast<T*>(a.values.data) + row * a.values.batch + position * a.values.row + key_head * a.values.head,
          lane);
    }
    if (warp < group) {
      if (a.q_norm != nullptr) head.norm(q_norm, a.head_eps);
      head.rotate(tables);
      head.store(memory.query[warp], lane);
      if (has_fresh) {
        if (a.k_norm != nullptr) key.norm(k_norm, a.head_eps);
        key.rotate(tables);
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) score += head.f[i] * key.f[i];
        score = warp_sum(score);
        if (lane == 0)
          memory.max[kAttendWarps][warp] = score * (a.scale * kLog2e), memory.sum[kAttendWarps][warp] = 1.f;
        if (warp == 0)
          key.store(static_cast<T*>(a.keys.data) + row * a.keys.batch + position * a.keys.row + key_head * a.keys.head,
                    lane);
      }
    }
  }
  if (!has_fresh && threadIdx.x < kGroup)
    memory.max[kAttendWarps][threadIdx.x] = -INFINITY, memory.sum[kAttendWarps][threadIdx.x] = 0.f;
  if (!has_fresh && threadIdx.x < kDim) memory.fresh_value[threadIdx.x] = 0.f;
#pragma unroll 1
  for (int i = group * kDim + threadIdx.x; i < 8 * kDim; i += kAttendThreads) memory.query[i / kDim][i % kDim] = T{};
  __syncthreads();

  // ---- consumer: one tile of keys a warp and pass: scores, the softmax state, the values' sums
  // Operands of the queries: row lane / 4; rows 8 to 15 are nobody's.
  uint32_t query[kSteps][2];
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const T* at = &memory.query[lane / 4][s * 16 + lane % 4 * 2];
    query[s][0] = *reinterpret_cast<const uint32_t*>(at), query[s][1] = *reinterpret_cast<const uint32_t*>(at + 8);
  }
  const float scale = a.scale * kLog2e;
  float max = -INFINITY, sum = 0.f, value[kTiles][4];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) value[t][0] = value[t][1] = value[t][2] = value[t][3] = 0.f;
  for (int pass = 0; pass < passes; ++pass) {
    const uint4 *k = memory.keys[pass % kStages][warp], *v = memory.values[pass % kStages][warp];
    cp_async_wait<kStages - 1>();
    __syncwarp();
    float score[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int r = lane / 16 * 8 + lane % 8, c = 2 * s + lane / 8 % 2;
      uint32_t w[4];
      ldmatrix_x4(w, k + r * kVectors + (c ^ (r % 8)));
      const uint32_t q[4] = {query[s][0], 0, query[s][1], 0};
      mma_m16n8k16<T>(score[0], q, w[0], w[1]);
      mma_m16n8k16<T>(score[1], q, w[2], w[3]);
    }
    const int64_t at = own + int64_t(pass) * kPass + lane % 4 * 2;
    const float before = max;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        score[j][i] = at + 8 * j + i < end ? score[j][i] * scale : -INFINITY;
        max = fmaxf(max, score[j][i]);
      }
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    if (__any_sync(kAllLanes, max != before)) {
      const float shrink = exp2f(before - max);  // a tile has a key, so that max is finite
      sum *= shrink;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) value[t][i] *= shrink;
      }
    }
    // Weights as two elements of 16 bits, what the first leaves in rows 8 to 15: both products come together below.
    uint32_t weight[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float p0 = exp2f(score[j][0] - max), p1 = exp2f(score[j][1] - max);
      sum += p0 + p1;
      weight[2 * j] = pack_pair<T>(p0, p1);
      const float2 high = unpack_pair<T>(weight[2 * j]);
      weight[2 * j + 1] = pack_pair<T>(p0 - high.x, p1 - high.y);
    }
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      const int r = lane % 16, c = t + lane / 16;
      uint32_t w[4];
      ldmatrix_x4_trans(w, v + r * kVectors + (c ^ (r % 8)));
      mma_m16n8k16<T>(value[t], weight, w[0], w[1]);
      mma_m16n8k16<T>(value[t + 1], weight, w[2], w[3]);
    }
    __syncwarp();
    issue(pass % kStages);
  }

  // ---- epilogue: the softmax states of the warps merge, then those of the blocks of a cluster (split-KV)
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (lane / 4 < group) {
    const int g = lane / 4;
    if (lane % 4 == 0) memory.max[warp][g] = max, memory.sum[warp][g] = sum;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      *reinterpret_cast<float2*>(&memory.value[warp][g][t * 8 + lane % 4 * 2]) =
          make_float2(value[t][0] + value[t][2], value[t][1] + value[t][3]);
  }
  __syncthreads();

  T* out = static_cast<T*>(a.attended) + row * queries + key_head * group * kDim;
  const int share = (group * kDim + splits - 1) / splits;  // elements that a block puts together
  if (splits > 1) cluster_wait();
#pragma unroll 1
  for (int i = threadIdx.x; i < group * kDim; i += kAttendThreads) {
    const int g = i / kDim, d = i % kDim;
    const SoftmaxPart whole = merged<kAttendWarps + 1>([&](int w) {
      return SoftmaxPart{{memory.max[w][g], memory.sum[w][g]},
                         w < kAttendWarps ? memory.value[w][g][d] : memory.fresh_value[d]};
    });
    if (splits == 1) {
      out[i] = from_float<T>(whole.value / whole.state.sum);
      continue;
    }
    send(&memory.block_value[split][i % share], i / share, whole.value);
    if (d >= splits) continue;
    send(&memory.block_max[split][g], d, whole.state.max);
    send(&memory.block_sum[split][g], d, whole.state.sum);
  }
  if (splits == 1) return;
  cluster_sync();
#pragma unroll 1
  for (int i = split * share + threadIdx.x; i < min((split + 1) * share, group * kDim); i += kAttendThreads) {
    const int g = i / kDim;
    const int last_split = splits - 1;
    const SoftmaxPart whole = merged<kMaxSplits>([&](int block) {
      const int b = min(block, last_split);
      const float max = memory.block_max[b][g];
      return SoftmaxPart{{block < splits ? max : -INFINITY, memory.block_sum[b][g]}, memory.block_value[b][i % share]};
    });
    out[i] = from_float<T>(whole.value / whole.state.sum);
  }
}

template <class T, int kDim, int kGroup>
void attend_tiles(const Layer& a, kernels::Stream stream) {
  launch_attend<attend_tiles_kernel<T, kDim, kGroup, kTileStages>, /*kMaxShared=*/true>(
      sizeof(AttendTiles<T, kDim, kGroup, kTileStages>), a, stream);
}

}  // namespace decode::cuda
