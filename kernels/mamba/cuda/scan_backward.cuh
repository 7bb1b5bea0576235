// The selective scan's backward on a GPU. A block goes through the chunks from the last to the first. In a chunk it
// first walks forward from the saved state and keeps the state before every 8th step in shared memory, then takes these
// parts from the last to the first: forward once more, with the powers and states of 8 steps in registers, and back.
// dB and dC are summed over a lane's channels, over the lanes of a warp by shuffles, over warps through shared memory
// and over blocks by another launch: in a fixed order, without atomics.
#pragma once

#include "kernels/mamba/cuda/scan_elements.cuh"

namespace mamba::scan::gpu {

constexpr int kPart = 8;  // steps between states that are kept
constexpr int kParts = kSteps / kPart;

// Sums over lanes of the same states in other channels: kCount numbers, of which each lane keeps a part, the numbers
// from `first` on. Halves go to the other lane while there is more than one, so that 4 numbers over 8 lanes are 4
// shuffles, not 12.
template <int kLanes, int kCount>
__device__ __forceinline__ void sum_channels_of_warp(float (&v)[kCount], int& first, bool& writes) {
  first = 0, writes = true;
  int count = kCount;
#pragma unroll
  for (int o = kLanes; o < 32; o *= 2) {
    const bool upper = (threadIdx.x & unsigned(o)) != 0;
    if (count > 1) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        if (i >= count) break;
        const float kept = upper ? v[i + count] : v[i], sent = upper ? v[i] : v[i + count];
        v[i] = kept + __shfl_xor_sync(kAllLanes, sent, o);
      }
      first += upper ? count : 0;
    } else {
      v[0] += __shfl_xor_sync(kAllLanes, v[0], o);
      writes = writes && !upper;
    }
  }
}
// How many a lane keeps.
template <int kLanes, int kCount>
constexpr int kKeptOf = kLanes<32 && kCount> 1 ? kKeptOf<2 * kLanes, kCount / 2> : kCount;
template <int kCount>
constexpr int kKeptOf<32, kCount> = kCount;
template <int kCount>
constexpr int kKeptOf<64, kCount> = kCount;

// What a lane carries through the time, or holds of a part.
template <class S>
struct Lane {
  float rate[S::kEach][S::kPer], h[S::kEach][S::kPer], dh[S::kEach][S::kPer], da[S::kEach][S::kPer];
};
template <class S>
struct Constant {  // B and C of its own channels, and their gradients
  float b[S::kEach][S::kPer], c[S::kEach][S::kPer], db[S::kEach][S::kPer], dc[S::kEach][S::kPer];
};

// The lane's B and C of one step, for channel e.
template <class S, bool kConstant>
struct Coefficient {
  float b[S::kPer], c[S::kPer];

  __device__ __forceinline__ Coefficient(const BackwardMemory<S>& m, int row) {
    const int first = int(threadIdx.x) % S::kLanes * S::kPer;
    load_shared(m.b + row * S::kPitch + first, b);
    load_shared(m.c + row * S::kPitch + first, c);
  }
  __device__ __forceinline__ float b_of(const Problem& p, const Constant<S>& own, int e, int n) const {
    return kConstant && p.b.constant ? own.b[e][n] : b[n];
  }
  __device__ __forceinline__ float c_of(const Problem& p, const Constant<S>& own, int e, int n) const {
    return kConstant && p.c.constant ? own.c[e][n] : c[n];
  }
};

// The first kCount steps of one part of the chunk, forward: what the state is behind them.
template <class S, int kCount, bool kPacked, bool kConstant>
__device__ __forceinline__ void walk_forward(const Problem& p, const BackwardMemory<S>& m, int part, int row,
                                             const Constant<S>& own, Lane<S>& lane) {
#pragma unroll
  for (int pair = 0; pair < kCount; pair += 2) {
    float inputs[S::kEach][4];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(m.input(S::channel(e), part * kPart + pair), inputs[e]);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      float b[S::kPer];
      load_shared(m.b + (row + pair + s) * S::kPitch + int(threadIdx.x) % S::kLanes * S::kPer, b);
      bool enters = true;
      if constexpr (kPacked) enters = m.marks.enters[part * kPart + pair + s] != 0.f;
#pragma unroll
      for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
        for (int n = 0; n < S::kPer; ++n) {
          const float before = enters ? lane.h[e][n] : 0.f, by = kConstant && p.b.constant ? own.b[e][n] : b[n];
          lane.h[e][n] = exp2(inputs[e][2 * s] * lane.rate[e][n]) * before + inputs[e][2 * s + 1] * by;
        }
      }
    }
  }
}

// kBack steps from `begin` on forward and back. Over Δ and Δ u it leaves sum_n dh B and sum_n A log2 e q, over dy the
// states' part of y.
template <class S, int kBack, bool kPacked, bool kConstant>
__device__ __forceinline__ void walk_back(const Problem& p, BackwardMemory<S>& m, int begin, int row, float* sums,
                                          Constant<S>& own, Lane<S>& lane) {
  constexpr int kKept = kKeptOf<S::kLanes, S::kPer>;
  const int place = int(threadIdx.x) % S::kLanes, states = place * S::kPer;
  float* const warp_sums = sums + int(threadIdx.x) / 32 * (kPart * 2 * S::kStates) + states;
  float a[kBack][S::kEach][S::kPer], held[kBack][S::kEach][S::kPer], y[kBack / 4][S::kEach];
#pragma unroll
  for (int four = 0; four < kBack; four += 4) {
    float part_y[S::kEach][4] = {}, dy[S::kEach][4], inputs[S::kEach][4];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(m.gradient(S::channel(e), begin + four), dy[e]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int s = four + i;
      if (i % 2 == 0) {
#pragma unroll
        for (int e = 0; e < S::kEach; ++e) load_shared(m.input(S::channel(e), begin + s), inputs[e]);
      }
      const Coefficient<S, kConstant> by(m, row + s);
      float dc[S::kPer] = {};
      bool enters = true;
      if constexpr (kPacked) enters = m.marks.enters[begin + s] != 0.f;
#pragma unroll
      for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
        for (int n = 0; n < S::kPer; ++n) {
          float& h = lane.h[e][n];
          a[s][e][n] = exp2(inputs[e][i % 2 * 2] * lane.rate[e][n]);
          held[s][e][n] = enters ? a[s][e][n] * h : 0.f;
          h = held[s][e][n] + inputs[e][i % 2 * 2 + 1] * by.b_of(p, own, e, n);
          part_y[e][i] += by.c_of(p, own, e, n) * h;
          dc[n] += dy[e][i] * h;
          if constexpr (kConstant) own.dc[e][n] += dy[e][i] * h;
        }
      }
      int first;
      bool writes;
      sum_channels_of_warp<S::kLanes>(dc, first, writes);
      if (writes) {
#pragma unroll
        for (int n = 0; n < kKept; ++n) warp_sums[(2 * s + 1) * S::kStates + first + n] = dc[n];
      }
    }
    sum_lanes<S>(part_y, y[four / 4]);
  }
#pragma unroll
  for (int four = kBack - 4; four >= 0; four -= 4) {
    float by_b[S::kEach][4] = {}, by_rate[S::kEach][4] = {}, dy[S::kEach][4], inputs[S::kEach][4];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(m.gradient(S::channel(e), begin + four), dy[e]);
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      const int s = four + i;
      if (i % 2 == 1) {
#pragma unroll
        for (int e = 0; e < S::kEach; ++e) load_shared(m.input(S::channel(e), begin + s - 1), inputs[e]);
      }
      const Coefficient<S, kConstant> by(m, row + s);
      float db[S::kPer] = {};
      bool enters = true;
      if constexpr (kPacked) enters = m.marks.enters[begin + s] != 0.f;
#pragma unroll
      for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
        for (int n = 0; n < S::kPer; ++n) {
          float& dh = lane.dh[e][n];
          dh += dy[e][i] * by.c_of(p, own, e, n);
          const float q = dh * held[s][e][n];
          by_b[e][i] += dh * by.b_of(p, own, e, n);
          by_rate[e][i] += q * lane.rate[e][n];
          lane.da[e][n] += inputs[e][i % 2 * 2] * q;
          db[n] += dh * inputs[e][i % 2 * 2 + 1];
          if constexpr (kConstant) own.db[e][n] += dh * inputs[e][i % 2 * 2 + 1];
          dh = enters ? dh * a[s][e][n] : 0.f;
        }
      }
      int first;
      bool writes;
      sum_channels_of_warp<S::kLanes>(db, first, writes);
      if (writes) {
#pragma unroll
        for (int n = 0; n < kKept; ++n) warp_sums[2 * s * S::kStates + first + n] = db[n];
      }
    }
    __syncwarp();  // all lanes have read what is written over
    float b[S::kEach], rate[S::kEach];
    sum_lanes<S>(by_b, b);
    sum_lanes<S>(by_rate, rate);
    if (place >= 4) continue;
#pragma unroll
    for (int i = 0; i < S::kEach; ++i) {
      const int step = begin + four + summed_step<S>() + i;
      *reinterpret_cast<float2*>(m.input(S::channel(0), step)) = make_float2(b[i], rate[i]);
      *m.gradient(S::channel(0), step) = y[four / 4][i];
    }
  }
}

// dB and dC of a part, summed over the block's warps, to where the block's slot has them.
template <class S>
__device__ __forceinline__ void store_token_sums(const Problem& p, const float* sums, int64_t first, bool begins,
                                                 float* to) {
  for (int i = int(threadIdx.x); i < kPart * 2 * S::kStates; i += kThreads) {
    const int s = i / (2 * S::kStates), which = i / S::kStates % 2, n = i % S::kStates;
    if (n >= p.states || first + s >= p.length) continue;
    float sum = sums[i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += sums[w * kPart * 2 * S::kStates + i];
    float* const at = to + ((first + s) * 2 + which) * p.states + n;
    *at = begins ? sum : *at + sum;
  }
}

struct BackwardPlan {
  int64_t blocks, slots;  // of a group's channels; blocks of threads that share them
  TokenLayouts layouts;
};

template <class T, Along kAlong, class S, bool kPacked, bool kConstant>
__global__ void __launch_bounds__(kThreads, 2) backward(const Backward a, const BackwardPlan plan) {
  // Steps whose powers and states are in registers, 16 a step: with constant B and C half as many fit.
  constexpr int kBack = kConstant ? kPart / 2 : kPart;
  extern __shared__ __align__(16) float memory[];
  BackwardMemory<S>& m = *reinterpret_cast<BackwardMemory<S>*>(memory);
  const Problem& p = a.of;
  const int64_t item = blockIdx.x, slot = item % plan.slots, group = item / plan.slots % p.groups;
  const int64_t batch = item / plan.slots / p.groups, size = p.channels / p.groups;
  const int64_t chunks = (p.length + kChunk - 1) / kChunk, rows = channel_rows(p);
  float* const tokens = a.token_sums + item * p.length * 2 * p.states;
  const View channel_sums{a.channel_sums, DType::kFloat32, rows * p.channels, 1, p.channels};
  const int64_t last_block = (slot + 1) * plan.blocks / plan.slots, first_block = slot * plan.blocks / plan.slots;
  for (int64_t block = first_block; block < last_block; ++block) {
    const int64_t left = size - block * S::kChannels;
    const Place at{batch, group, group * size + block * S::kChannels, int(left < S::kChannels ? left : S::kChannels)};
    Lane<S> lane{};
    Constant<S> own{};
    for (int e = 0; e < 2 * kVector; ++e) m.sums[e][threadIdx.x] = 0.f;  // each thread its own
    load_numbers<S>(p.a, p, at, 0, kLog2E, lane.rate);
    load_numbers<S>(a.dlast, p, at, batch, 1.f, lane.dh);
    if constexpr (kConstant) {
      if (p.b.constant) load_numbers<S>(p.b.view, p, at, 0, 1.f, own.b);
      if (p.c.constant) load_numbers<S>(p.c.view, p, at, 0, 1.f, own.c);
    }
    load_channels<S>(p, at, m);
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t first = chunk * kChunk;
      const int steps = int(p.length - first < kSteps ? p.length - first : kSteps);
      const int parts = (steps + kPart - 1) / kPart;
      if constexpr (kPacked) {
        int32_t current = threadIdx.x < 32 ? sequence_before(p.sequence, batch, first) : -1;
        find_marks<kSteps>(p.sequence, batch, first, p.length, current, m.marks);
      }
      __syncthreads();
      const Marks* const marks = kPacked ? &m.marks : nullptr;
      open_chunk<T, kAlong, S, kPacked>(a, at, first, steps, m);
      if constexpr (!BackwardMemory<S>::kByPart) load_tokens_of<T, S, kSteps>(p, at, first, 0, marks, plan.layouts, m);
      load_saved<S>(a.checkpoints, p, at, chunk, lane.h);
      __syncthreads();
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        if constexpr (BackwardMemory<S>::kByPart) {
          __syncthreads();
          load_tokens_of<T, S, kPart>(p, at, first + part * kPart, part * kPart, marks, plan.layouts, m);
          __syncthreads();
        }
        m.keep(part, lane.h);
        if (part + 1 < parts) walk_forward<S, kPart, kPacked, kConstant>(p, m, part, m.row(part * kPart), own, lane);
      }
#pragma unroll 1
      for (int part = parts - 1; part >= 0; --part) {
        if constexpr (BackwardMemory<S>::kByPart) {
          __syncthreads();
          load_tokens_of<T, S, kPart>(p, at, first + part * kPart, part * kPart, marks, plan.layouts, m);
          __syncthreads();
        }
        float* const sums = m.token_sums[part % BackwardMemory<S>::kBuffers];
        const int row = m.row(part * kPart);
        if constexpr (kBack < kPart) {
          m.restore(part, lane.h);
          walk_forward<S, kPart - kBack, kPacked, kConstant>(p, m, part, row, own, lane);
          walk_back<S, kBack, kPacked, kConstant>(p, m, part * kPart + kBack, row + kBack,
                                                  sums + kBack * 2 * S::kStates, own, lane);
        }
        m.restore(part, lane.h);
        walk_back<S, kBack, kPacked, kConstant>(p, m, part * kPart, row, sums, own, lane);
        __syncthreads();  // with two buffers nobody writes sums that are read
        if (!(p.b.constant && p.c.constant))
          store_token_sums<S>(p, sums, first + part * kPart, block == first_block, tokens);
      }
      __syncthreads();
      close_chunk<T, kAlong, S, kPacked>(a, at, first, steps, m);
      __syncthreads();
    }
    if (a.dinitial.data != nullptr) store_numbers<S>(a.dinitial, p, at, batch, 0, lane.dh);
    int64_t row = p.states;
    store_numbers<S>(channel_sums, p, at, batch, 0, lane.da);
    if constexpr (kConstant) {
      if (p.b.constant) store_numbers<S>(channel_sums, p, at, batch, row, own.db), row += p.states;
      if (p.c.constant) store_numbers<S>(channel_sums, p, at, batch, row, own.dc), row += p.states;
    }
    store_channel_sums<kAlong, S>(at, m, channel_sums, row);
    __syncthreads();
  }
}

}  // namespace mamba::scan::gpu
