// Attention of the new tokens inside the whole layer: heads.cuh's steps by 16 warps of a block for one row, one key
// head (or up to kGroup of its query heads) and one run of keys.
#pragma once

#include "kernels/decode/heads.cuh"
#include "kernels/decode/whole/weights.cuh"

namespace decode::cuda {

// How the keys that the position sees are shared out: 2^shift runs. The same in every block.
struct KeyRuns {
  int position, first, each, shift;
  __device__ __forceinline__ KeyRuns(const Whole& w, int position, int keys_a_pass) : position(position), shift(0) {
    first = w.a.window < 0 ? 0 : int(max(int64_t{0}, position - w.a.window));
    const int keys = position + 1 - first;
    while ((1 << shift) < w.most_splits && keys_a_pass << shift < keys) ++shift;
    each = (keys + (1 << shift) - 1) >> shift;
  }
  __device__ __forceinline__ int splits() const { return 1 << shift; }
};

template <int kDim, int kGroup>
struct AttentionMemory {
  float query[kGroup][kDim];  // scaled
  float cos[kDim], sin[kDim], query_norm[kDim], key_norm[kDim];
  float fresh_key[kDim], fresh_value[kDim];
  float most[kFewWarps][kGroup], sum[kFewWarps][kGroup];
  float value[kFewWarps][kGroup][kDim];
};

// A new head of the first product, from its number `first` on.
template <bool kTold, class T, int kDim>
__device__ __forceinline__ void head_of(Head<T, kDim>& head, const Layer& a, int64_t first, unsigned turn) {
  const int lane = threadIdx.x % 32;
  if constexpr (kTold) {
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      const float2 two = unpack_pair<T>(hear_two(0, first + (lane & ~1) + 32 * i, turn));
      head.f[i] = lane & 1 ? two.y : two.x;
    }
  } else {
    head.load(static_cast<const T*>(a.qkv) + first, lane);
  }
}

template <class T, int kDim, int kGroup, bool kTold>
class Attention {
  static constexpr int kLanes = kDim / 8, kKeys = 32 / kLanes;  // lanes a key, keys a warp reads at once
  static constexpr int kUnroll = kGroup <= 2 ? 4 : 2, kStride = kFewWarps * kKeys;

 public:
  static constexpr int kKeysAPass = kStride * kUnroll;

  __device__ __forceinline__ Attention(const Whole& w, const KeyRuns& runs) : w_(w), runs_(runs) {}
  __device__ __forceinline__ int items() const {
    return int(w_.a.rows) * int(w_.a.kv_heads) * w_.chunks << runs_.shift;
  }
  // Asks for the first keys and values, all but the new ones.
  __device__ __forceinline__ void begin(AttentionMemory<kDim, kGroup>& memory, int item) {
    const Layer& a = w_.a;
    split_ = item & (runs_.splits() - 1), item >>= runs_.shift;
    const int group = int(a.heads / a.kv_heads), chunk = item % w_.chunks;
    item /= w_.chunks;
    key_head_ = item % int(a.kv_heads), row_ = item / int(a.kv_heads);
    first_head_ = key_head_ * group + chunk * kGroup, heads_ = min(kGroup, group - chunk * kGroup);
    begin_ = min(runs_.position + 1, runs_.first + split_ * runs_.each);
    end_ = min(runs_.position + 1, begin_ + runs_.each), old_end_ = min(end_, runs_.position);
    // What the new heads need besides.
    const T *q_norm = static_cast<const T*>(a.q_norm), *k_norm = static_cast<const T*>(a.k_norm);
    const int d = threadIdx.x, at = int(row_ * a.rope_stride) + d;
    T cos{}, sin{}, of_query{}, of_key{};
    if (d < kDim) {
      cos = static_cast<const T*>(a.cos)[at], sin = static_cast<const T*>(a.sin)[at];
      if (q_norm != nullptr) of_query = q_norm[d];
      if (k_norm != nullptr) of_key = k_norm[d];
    }
    load(begin_ + threadIdx.x / 32 * kKeys);
    if (d >= kDim) return;
    memory.cos[d] = to_float(cos), memory.sin[d] = to_float(sin);
    memory.query_norm[d] = to_float(of_query), memory.key_norm[d] = to_float(of_key);
  }
  __device__ __forceinline__ void run(AttentionMemory<kDim, kGroup>& memory, unsigned turn);

 private:
  __device__ __forceinline__ void load(int key) {
    const int lane = threadIdx.x % 32, dim = lane % kLanes * 8;
    const CacheRows &keys = w_.a.keys, &values = w_.a.values;
    const T* key_at = static_cast<const T*>(keys.data) + row_ * keys.batch + key_head_ * keys.head + dim;
    const T* value_at = static_cast<const T*>(values.data) + row_ * values.batch + key_head_ * values.head + dim;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = key + u * kStride + lane / kLanes;
      if (at >= old_end_) continue;
      k_[u] = kernels::gpu::load<8>(key_at + at * keys.row);
      v_[u] = kernels::gpu::load<8>(value_at + at * values.row);
    }
  }

  const Whole& w_;
  const KeyRuns& runs_;
  int split_, key_head_, row_, first_head_, heads_;
  int begin_, end_, old_end_;
  Pack<T, 8> k_[kUnroll], v_[kUnroll];
};

template <class T, int kDim, int kGroup, bool kTold>
__device__ __forceinline__ void Attention<T, kDim, kGroup, kTold>::run(AttentionMemory<kDim, kGroup>& memory,
                                                                       unsigned turn) {
  const Layer& a = w_.a;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = lane % kLanes * 8;
  const int64_t queries = a.heads * kDim, fresh = queries + 2 * a.kv_heads * kDim;
  const int position = runs_.position;
  const bool has_fresh = begin_ <= position && position < end_;  // who sees the new key and, of its first queries,
  const bool keeps = has_fresh && first_head_ == key_head_ * int(a.heads / a.kv_heads);  // also writes it
  if (warp < heads_ + 2 && (warp < heads_ || has_fresh)) {
    const auto raw = [&](Head<T, kDim>& head, int64_t first) { head_of<kTold>(head, a, row_ * fresh + first, turn); };
    Head<T, kDim> head;
    HeadTables<T, kDim> tables;
    tables.load(memory.cos, memory.sin, lane);
    if (warp < heads_) {
      raw(head, (first_head_ + warp) * kDim);
      if (a.q_norm != nullptr) head.norm(memory.query_norm, a.head_eps, lane);
      head.rotate(tables);
      head.put(memory.query[warp], a.scale * kLog2e, lane);
    } else if (warp == heads_) {
      raw(head, queries + key_head_ * kDim);
      if (a.k_norm != nullptr) head.norm(memory.key_norm, a.head_eps, lane);
      head.rotate(tables);
      head.put(memory.fresh_key, 1.f, lane);
      if (keeps)
        head.store(static_cast<T*>(a.keys.data) + row_ * a.keys.batch + position * a.keys.row + key_head_ * a.keys.head,
                   lane);
    } else {
      raw(head, queries + (a.kv_heads + key_head_) * kDim);
      head.put(memory.fresh_value, 1.f, lane);
      if (keeps)
        head.store(static_cast<T*>(a.values.data) + row_ * a.values.batch + position * a.values.row +
                       key_head_ * a.values.head,
                   lane);
    }
  }
  for (int i = heads_ * kDim + threadIdx.x; i < kGroup * kDim; i += kFewThreads) memory.query[i / kDim][i % kDim] = 0.f;
  sync_workers();

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
  for (int key = begin_ + warp * kKeys; key < old_end_; key += kStride * kUnroll) {
    float score[kGroup][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool seen = key + u * kStride + lane / kLanes < old_end_;
      float f[8];
      unpack<T, 8>(k_[u], f);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float s = score_of(f, g);
        score[g][u] = seen ? s : -INFINITY;
      }
    }
    running.weigh(score);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (key + u * kStride + lane / kLanes >= old_end_) continue;
      float f[8];
      unpack<T, 8>(v_[u], f);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
#pragma unroll
        for (int i = 0; i < 8; ++i) running.value[g][i] += score[g][u] * f[i];
      }
    }
    load(key + kStride * kUnroll);
  }
  if (has_fresh && warp == 0) {  // the new key, by the warp's first lanes
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
#pragma unroll
  for (int apart = kLanes; apart < 32; apart *= 2) running.add_lane(apart);
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (lane == 0) memory.most[warp][g] = running.most[g], memory.sum[warp][g] = running.sum[g];
    if (lane >= kLanes) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) memory.value[warp][g][dim + i] = running.value[g][i];
  }
  sync_workers();
  for (int i = threadIdx.x; i < heads_ * kDim; i += kFewThreads) {
    const int g = i / kDim, d = i % kDim;
    const Part whole = together(kFewWarps, [&](int from) {
      return Part{memory.most[from][g], memory.sum[from][g], memory.value[from][g][d]};
    });
    const int64_t head = row_ * a.heads + first_head_ + g;
    if (runs_.shift == 0) {
      static_cast<T*>(a.attended)[head * kDim + d] = from_float<T>(whole.value / whole.sum);
      continue;
    }
    w_.parts[((head << runs_.shift) + split_) * kDim + d] = whole.value;
    if (d == 0)
      reinterpret_cast<float2*>(w_.stats)[(head << runs_.shift) + split_] = make_float2(whole.most, whole.sum);
  }
}

}  // namespace decode::cuda
