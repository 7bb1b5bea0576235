// Divergences of the softmax of logits, whose gradients take their place, with both rows on the chip: a cluster goes
// through rows, and each thread has a ring of its own in shared memory, so that the next rows are on their way while
// one is worked on.
//
// A row takes three steps: the states of both softmaxes; terms, slopes and probabilities, which stay in registers; the
// gradients. Between them the blocks of a cluster have to know each other's sums. Steps of neighbouring rows take turns
// so that one exchange a row is enough: it carries the sums of row i and the states of row i + 1, and while it is on
// its way the states of row i + 2 are made.
#pragma once

#include "kernels/common/gpu/cluster.cuh"
#include "kernels/common/gpu/copy_behind.cuh"
#include "kernels/probability/terms.cuh"

namespace probability::gpu {

constexpr int kLogitsThreads = 512, kLogitsDepth = 3, kLogitsElements = 32;  // elements: a thread's, of each row

struct LogitsSums {
  SoftmaxState state[2];
  float term = 0.f, slope = 0.f;
};

// What the blocks of a cluster tell each other. Two buffers take turns: who sends to one for the second time has heard
// from everybody that the first time was read.
class LogitsExchange {
 public:
  static constexpr int kMostBlocks = 8, kCount = 6;
  struct Memory {
    Barrier full[2];
    float from[2][kMostBlocks][kCount + 2], warps[2][kCount][kLogitsThreads / 32];
  };
  __device__ explicit LogitsExchange(Memory& memory) : memory_(memory) {
    if (threadIdx.x == 0) {
      for (Barrier& full : memory.full) full.init(1), full.arrive_expecting(bytes());
      publish_barriers();
    }
    cluster_begins();
    wait_for_cluster();
  }
  __device__ __forceinline__ void send(LogitsSums mine) {
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
    mine = of_warp(mine);
    auto& parts = memory_.warps[turn_];
    if (lane == 0) {
      parts[0][warp] = mine.state[0].top, parts[1][warp] = mine.state[0].total;
      parts[2][warp] = mine.state[1].top, parts[3][warp] = mine.state[1].total;
      parts[4][warp] = mine.term, parts[5][warp] = mine.slope;
    }
    __syncthreads();
    if (warp > 0) return;
    LogitsSums all;
    if (lane < warps) {
      all.state[0] = {parts[0][lane], parts[1][lane]};
      all.state[1] = {parts[2][lane], parts[3][lane]};
      all.term = parts[4][lane], all.slope = parts[5][lane];
    }
    all = of_warp(all);
    if (lane >= int(blocks_in_cluster())) return;
    const float v[kCount] = {all.state[0].top,   all.state[0].total, all.state[1].top,
                             all.state[1].total, all.term,           all.slope};
    auto& there = memory_.from[turn_][rank_in_cluster()];
#pragma unroll
    for (int i = 0; i < kCount; ++i) store_to(uint32_t(lane), there[i], v[i], memory_.full[turn_]);
  }
  __device__ __forceinline__ LogitsSums receive() {
    Barrier& full = memory_.full[turn_];
    full.wait(parity_);
    LogitsSums all;
    const unsigned blocks = blocks_in_cluster();
    for (unsigned b = 0; b < blocks; ++b) {
      const auto& v = memory_.from[turn_][b];
      all.state[0].merge({v[0], v[1]});
      all.state[1].merge({v[2], v[3]});
      all.term += v[4], all.slope += v[5];
    }
    if (threadIdx.x == 0) full.arrive_expecting(bytes());
    parity_ ^= turn_;
    turn_ ^= 1;
    return all;
  }
  // Nobody may end while others still send to it, which they do until their last exchange.
  __device__ __forceinline__ void end() { cluster_barrier(); }

 private:
  static __device__ __forceinline__ uint32_t bytes() { return blocks_in_cluster() * kCount * 4; }
  static __device__ __forceinline__ LogitsSums of_warp(LogitsSums v) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float top = warp_max(v.state[k].top);
      v.state[k] = {top, warp_sum(v.state[k].total * v.state[k].share_at(top))};
    }
    v.term = warp_sum(v.term), v.slope = warp_sum(v.slope);
    return v;
  }
  Memory& memory_;
  int turn_ = 0;
  uint32_t parity_ = 0;
};

template <class T, Kind kKind>
__global__ void __launch_bounds__(kLogitsThreads, 1) logits_held(const OfLogits a) {
  constexpr int N = kPerVector<T>, kVectors = kLogitsElements / N;
  constexpr bool kCoarse = sizeof(T) == 2;
  extern __shared__ uint4 ring[];  // [depth][2][vectors][threads]
  __shared__ LogitsExchange::Memory memory;
  const int lanes = int(blockDim.x);
  const int64_t step = gridDim.x / blocks_in_cluster(), begin = blockIdx.x / blocks_in_cluster();
  const int64_t first = int64_t{rank_in_cluster()} * lanes * kVectors;  // vector of the row
  const int64_t vectors = a.cols / N;
  const auto place = [&](int slot, int tensor, int k) {
    return ring + ((slot * 2 + tensor) * kVectors + k) * lanes + threadIdx.x;
  };
  const auto vector = [&](int k) { return first + k * lanes + threadIdx.x; };
  const auto fetch = [&](int64_t row, int slot) {
    if (row < a.rows) {
      const T *z = static_cast<const T*>(a.z) + row * a.z_stride,
              *target = static_cast<const T*>(a.target) + row * a.target_stride;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (vector(k) >= vectors) continue;
        copy_behind(place(slot, 0, k), z + vector(k) * N);
        copy_behind(place(slot, 1, k), target + vector(k) * N);
      }
    }
    end_of_copies();
  };
  const auto get = [&](int slot, int tensor, int k) {
    const uint4 v = *place(slot, tensor, k);
    Pack<T, N> p;
    p.w[0] = v.x, p.w[1] = v.y, p.w[2] = v.z, p.w[3] = v.w;
    return p;
  };
  const auto state_of = [&](int slot, int tensor) {
    SoftmaxState state;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (vector(k) < vectors) state.top = fmaxf(state.top, highest_of(get(slot, tensor, k)));
    }
    state.top *= a.scale;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (vector(k) >= vectors) continue;
      float f[N];
      unpack(get(slot, tensor, k), f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] *= a.scale;
      state.add<kCoarse>(f);
    }
    return state;
  };
  const auto states = [&](LogitsSums& sums, int slot) {
    sums.state[0] = state_of(slot, 0);
    sums.state[1] = state_of(slot, 1);
  };
  wait_for_launch_before();
  fetch(begin, 0);
  fetch(begin + step, 1);
  LogitsExchange exchange(memory);
  float slope[kVectors][N], q[kVectors][N];
  LogitsSums mine;
  wait_for_all_but<1>();
  states(mine, 0);
  exchange.send(mine);
  int slot = 0;
  const auto next = [](int slot) { return slot == kLogitsDepth - 1 ? 0 : slot + 1; };
  const auto write = [&](int64_t row, const LogitsSums& all) {  // row's gradients and loss
    T* z = static_cast<T*>(a.z) + row * a.z_stride;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (vector(k) >= vectors) continue;
      float f[N];
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = (slope[k][i] - q[k][i] * all.slope) * a.scale;
      store_floats<N>(z + vector(k) * N, f);
    }
    if (threadIdx.x == 0 && first == 0) a.loss[row] = all.term;
  };
  for (int64_t row = begin; row < a.rows; row += step) {
    const int after = next(slot);
    fetch(row + 2 * step, next(after));
    wait_for_all_but<1>();
    LogitsSums ahead;
    if (row + step < a.rows) states(ahead, after);
    const LogitsSums all = exchange.receive();
    if (row > begin) write(row - step, all);
    const float log_sum[2] = {logf(all.state[0].total), logf(all.state[1].total)};
    // Two parts: an offset that a row's logits have in common costs no bits.
    const auto log_softmax = [&](float z, int k) { return (z * a.scale - all.state[k].top) - log_sum[k]; };
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (vector(k) >= vectors) continue;
      float t[N];
      unpack(get(slot, 0, k), q[k]);
      unpack(get(slot, 1, k), t);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Parts parts = parts_of<kKind, kCoarse>(log_softmax(q[k][i], 0), log_softmax(t[i], 1), a.beta);
        ahead.term += parts.term, ahead.slope += parts.slope;
        slope[k][i] = parts.slope, q[k][i] = parts.q;
      }
    }
    exchange.send(ahead);
    slot = after;
  }
  const LogitsSums all = exchange.receive();
  const int64_t last = begin + (a.rows - 1 - begin) / step * step;
  if (begin < a.rows) write(last, all);
  exchange.end();
}

}  // namespace probability::gpu
