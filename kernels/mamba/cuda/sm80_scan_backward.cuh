// The selective scan's backward on a GPU. A block goes through the chunks from the last to the first. In a chunk it
// first walks forward from the saved state and keeps the state before every 8th step in shared memory, then takes these
// parts from the last to the first: forward once more, with the powers and states of 8 steps in registers, and back.
// dB and dC are summed over a lane's channels, over lanes and warps through shared memory, over a slot's blocks in
// memory and over slots by another launch: in a fixed order.
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_scan_elements.cuh"

namespace mamba::scan::gpu {

// Sums of dB or dC of four steps over a warp's channels: of what its lanes left in m.fours, a lane adds up two states
// of one step. Shared memory is half of the instructions of shuffles, which would have to select what they send. The
// next four are written elsewhere, so that nobody waits for these reads: they go along with the next four's work.
template <class S, class Memory>
__device__ __forceinline__ void sum_four_steps(const float* four, float* to) {
  __syncwarp();
#pragma unroll
  for (int k = 0; k < S::kStates / 16; ++k) {
    const int i = int(threadIdx.x % 32) + 32 * k, step = i / 4 % 4, state = 2 * (i % 4 + i / 16 * 4);
    const float* const from = four + Memory::of_step(step) + state % S::kPer;
    float2 sum{};
#pragma unroll
    for (int slot = 0; slot < 32 / S::kLanes; ++slot) {
      const float2 more = *reinterpret_cast<const float2*>(from + S::lane_of(slot, state / S::kPer) * S::kPer);
      sum.x += more.x, sum.y += more.y;
    }
    *reinterpret_cast<float2*>(to + step * 2 * S::kStates + state) = sum;
  }
}

// What a lane carries through the time, or holds of a part.
template <class S>
struct Lane {
  float rate[S::kEach][S::kPer], h[S::kEach][S::kPer], dh[S::kEach][S::kPer];
  float da[S::kEach][S::kPer];  // of this chunk
};
template <class S>
struct Constant {  // B and C of its own channels, and their gradients
  float b[S::kEach][S::kPer], c[S::kEach][S::kPer], db[S::kEach][S::kPer], dc[S::kEach][S::kPer];
};

// The lane's B and C of one step, for channel e.
template <class S, bool kConstant>
struct Coefficient {
  float b[S::kPer], c[S::kPer];

  template <class Memory>
  __device__ __forceinline__ Coefficient(const Memory& m, int step) {
    const int first = S::place() * S::kPer;
    load_shared(m.b + step * S::kPitch + first, b);
    load_shared(m.c + step * S::kPitch + first, c);
  }
  __device__ __forceinline__ float b_of(const Problem& p, const Constant<S>& own, int e, int n) const {
    return kConstant && p.b.constant ? own.b[e][n] : b[n];
  }
  __device__ __forceinline__ float c_of(const Problem& p, const Constant<S>& own, int e, int n) const {
    return kConstant && p.c.constant ? own.c[e][n] : c[n];
  }
};

// kCount steps from `begin` on, forward: what the state is behind them.
template <class S, int kCount, bool kPacked, bool kConstant, class Memory>
__device__ __forceinline__ void walk_forward(const Problem& p, Memory& m, int begin, const Constant<S>& own,
                                             Lane<S>& lane) {
#pragma unroll
  for (int pair = 0; pair < kCount; pair += 2) {
    float inputs[S::kEach][4];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(m.input(S::channel(e), begin) + 2 * pair, inputs[e]);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      float b[S::kPer];
      load_shared(m.b + (begin + pair + s) * S::kPitch + S::place() * S::kPer, b);
      bool enters = true;
      if constexpr (kPacked) enters = m.marks.enters[begin + pair + s] != 0.f;
#pragma unroll
      for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
        for (int n = 0; n < S::kPer; ++n) {
          const float before = enters ? lane.h[e][n] : 0.f, by = kConstant && p.b.constant ? own.b[e][n] : b[n];
          lane.h[e][n] = exp2_approx(inputs[e][2 * s] * lane.rate[e][n]) * before + inputs[e][2 * s + 1] * by;
        }
      }
    }
  }
}

// kBack steps from `begin` on forward and back. Over Δ and Δ u it leaves sum_n dh B and sum_n A log2 e q, over dy the
// states' part of y; in `sums` the warp's dB and dC.
template <class S, int kBack, bool kPacked, bool kConstant, class Memory>
__device__ __forceinline__ void walk_back(const Problem& p, Memory& m, int begin, float* sums, Constant<S>& own,
                                          Lane<S>& lane) {
  const int warp = int(threadIdx.x) / 32;
  sums += warp * kPart * 2 * S::kStates;
  const auto keep = [&](int which, int step, const float(&v)[S::kPer]) {
    float* const to = m.fours[warp][which % 2] + int(threadIdx.x) % 32 * S::kPer + Memory::of_step(step);
#pragma unroll
    for (int n = 0; n < S::kPer; n += 4)
      *reinterpret_cast<float4*>(to + n) = make_float4(v[n], v[n + 1], v[n + 2], v[n + 3]);
  };
  float a[kBack][S::kEach][S::kPer], held[kBack][S::kEach][S::kPer], y[kBack / 4][S::kEach];
#pragma unroll
  for (int four = 0; four < kBack; four += 4) {
    float part_y[S::kEach][4] = {}, dy[S::kEach][4], inputs[S::kEach][4];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(m.gradient(S::channel(e), begin) + four, dy[e]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int s = four + i;
      if (i % 2 == 0) {
#pragma unroll
        for (int e = 0; e < S::kEach; ++e) load_shared(m.input(S::channel(e), begin) + 2 * s, inputs[e]);
      }
      const Coefficient<S, kConstant> by(m, begin + s);
      float dc[S::kPer] = {};
      bool enters = true;
      if constexpr (kPacked) enters = m.marks.enters[begin + s] != 0.f;
#pragma unroll
      for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
        for (int n = 0; n < S::kPer; ++n) {
          float& h = lane.h[e][n];
          a[s][e][n] = exp2_approx(inputs[e][i % 2 * 2] * lane.rate[e][n]);
          held[s][e][n] = enters ? a[s][e][n] * h : 0.f;
          h = held[s][e][n] + inputs[e][i % 2 * 2 + 1] * by.b_of(p, own, e, n);
          part_y[e][i] += by.c_of(p, own, e, n) * h;
          dc[n] += dy[e][i] * h;
          if constexpr (kConstant) own.dc[e][n] += dy[e][i] * h;
        }
      }
      keep(four / 4, i, dc);
    }
    sum_four_steps<S, Memory>(m.fours[warp][four / 4 % 2], sums + (2 * four + 1) * S::kStates);
    sum_lanes<S>(part_y, y[four / 4]);
  }
#pragma unroll
  for (int four = kBack - 4; four >= 0; four -= 4) {
    const int which = (2 * kBack - 4 - four) / 4;  // of the fours' memory, in turn with those above
    float by_b[S::kEach][4] = {}, by_rate[S::kEach][4] = {}, dy[S::kEach][4], inputs[S::kEach][4];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(m.gradient(S::channel(e), begin) + four, dy[e]);
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      const int s = four + i;
      if (i % 2 == 1) {
#pragma unroll
        for (int e = 0; e < S::kEach; ++e) load_shared(m.input(S::channel(e), begin) + 2 * (s - 1), inputs[e]);
      }
      const Coefficient<S, kConstant> by(m, begin + s);
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
      keep(which, i, db);
    }
    sum_four_steps<S, Memory>(m.fours[warp][which % 2],
                              sums + 2 * four * S::kStates);  // all lanes have read what is written over
    float b[S::kEach], rate[S::kEach];
    sum_lanes<S>(by_b, b);
    sum_lanes<S>(by_rate, rate);
    if (S::place() >= 4) continue;
    const int step = four + summed_step<S>();
#pragma unroll
    for (int i = 0; i < S::kEach; ++i) {
      *reinterpret_cast<float2*>(m.input(S::channel(0), begin) + 2 * (step + i)) = make_float2(b[i], rate[i]);
      m.gradient(S::channel(0), begin)[step + i] = y[four / 4][i];
    }
  }
}

// dB and dC of a part, summed over the block's warps, to where the block's slot has them. Nobody else writes there:
// atomic additions are as good as others, in their order, and do not wait for what they add to.
template <class S, class Memory>
__device__ __forceinline__ void store_token_sums(const Backward& a, const float* sums, int begin, int steps,
                                                 bool begins, const Memory& m) {
  constexpr int kRow = 2 * S::kStates;
  const Problem& p = a.of;
  float* const to = a.token_sums + m.begins[kOfTokenSums] + 2 * begin * p.states;
#pragma unroll
  for (int k = 0; k < kPart * kRow / kThreads; ++k) {
    const int i = k * kThreads + int(threadIdx.x);
    const int s = i / kRow, which = i / S::kStates % 2, n = i % S::kStates;
    if (n >= p.states || begin + s >= steps) continue;
    float sum = sums[i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += sums[w * kPart * kRow + i];
    float* const at = to + (2 * s + which) * p.states + n;
    if (begins)
      *at = sum;
    else
      atomicAdd(at, sum);
  }
}

struct BackwardPlan {
  int64_t blocks, slots;  // of a group's channels; blocks of threads that share them
  TokenLayouts layouts;
  Tensors tensors;
};

// Few states a lane leave registers for twice the warps.
template <class S, bool kConstant>
constexpr int kBackwardBlocks = !kConstant && S::kEach * S::kPer == 4 ? 4 : 2;

template <class T, Contiguous kContiguous, class S, bool kPacked, bool kConstant>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks<S, kConstant>)
    backward(const Backward a, const BackwardPlan plan) {
  // Steps whose powers and states are in registers, with those of constant B and C.
  constexpr int kBack = kConstant && S::kEach * S::kPer > 4 ? kPart / 2 : kPart;
  extern __shared__ __align__(16) float memory[];
  using Memory = BackwardMemory<T, kContiguous, S>;
  Memory& m = *reinterpret_cast<Memory*>(memory);

  // ---- prologue: the channel blocks of this block of threads
  const Problem& p = a.of;
  const int slots = int(plan.slots), blocks = int(plan.blocks), slot = int(blockIdx.x) % slots;
  const int last_block = int(int64_t{slot + 1} * blocks / slots), first_block = int(int64_t{slot} * blocks / slots);
  const int chunks = int((p.length + kGpuChunk - 1) / kGpuChunk);
  for (int block = first_block; block < last_block; ++block) {
    // ---- prologue of a channel block: where its tensors are, its constants and the saved states
    if (threadIdx.x < kTensors) {
      const int64_t item = blockIdx.x / unsigned(slots), group = item % p.groups, size = p.channels / p.groups;
      const int64_t left = size - int64_t{block} * S::kChannels, first = (int64_t{chunks} - 1) * kGpuChunk;
      const Position at{item / p.groups, group, group * size + int64_t{block} * S::kChannels,
                        int(left < S::kChannels ? left : S::kChannels)};
      if (threadIdx.x == 0) m.at = at;
      const View& v = plan.tensors.views[threadIdx.x];
      int64_t& begin = m.begins[threadIdx.x];
      if (threadIdx.x == kOfTokenSums)
        begin = (blockIdx.x * p.length + first) * 2 * p.states;
      else if (threadIdx.x == kOfB || threadIdx.x == kOfC)
        begin = tokens_begin(threadIdx.x == kOfB ? p.b : p.c, at, first);
      else
        begin = place(v, at.batch, at.channel, first);
    }
    __syncthreads();
    Lane<S> lane{};
    Constant<S> own{};
    for (float* sum = m.sums[0] + threadIdx.x; sum < m.sums[Memory::kSums]; sum += kThreads) *sum = 0.f;
    load_elements<S>(p.a, p, m.at, 0, kLog2E, lane.rate);
    load_elements<S>(a.dlast, p, m.at, m.at.batch, 1.f, lane.dh);
    if constexpr (kConstant) {
      if (p.b.constant) load_elements<S>(p.b.view, p, m.at, 0, 1.f, own.b);
      if (p.c.constant) load_elements<S>(p.c.view, p, m.at, 0, 1.f, own.c);
    }
    load_channels<S>(p, m.at, m.skip, m.bias);
    const float* saved = static_cast<const float*>(a.checkpoints.data) +
                         ((m.at.batch * chunks + chunks - 1) * p.states + S::place() * S::kPer) * p.channels +
                         m.at.channel + S::channel(0);
    int steps = int(p.length - (int64_t{chunks} - 1) * kGpuChunk);  // of the last chunk; the others are whole
    if constexpr (kAhead<T>) {
      fetch_saved<S>(saved, p, m);
      fetch_chunk<T, kContiguous, S>(a, plan.layouts, (chunks - 1) % 2, steps, 0, m);
    }

    // ---- main loop: chunks from the last to the first
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      const int parts = (steps + kPart - 1) / kPart;
      if constexpr (kPacked) {
        const int64_t first = chunk * kGpuChunk;
        int32_t current = threadIdx.x < 32 ? sequence_before(p.sequence, m.at.batch, first) : -1;
        find_marks<kSteps>(p.sequence, m.at.batch, first, p.length, current, m.marks);
      }
      __syncthreads();
      const Marks* const marks = kPacked ? &m.marks : nullptr;
      const Tokens b{m.begins[kOfB], p.states, steps, marks}, c{m.begins[kOfC], p.states, steps, marks};

      // ---- producer: tokens and states of this chunk; the next chunk's copies start
      const int half = chunk % 2;
      if constexpr (kAhead<T>) {
        cp_async_wait<0>();
        m.restore(0, lane.h);
        store_tokens<T, kContiguous, S>(plan.layouts, steps, marks, m);
        if (plan.layouts.b == Contiguous::kAny) load_tokens_each<S, kSteps>(p.b, b, m.b);
        if (plan.layouts.c == Contiguous::kAny) load_tokens_each<S, kSteps>(p.c, c, m.c);
      } else {
        load_saved<S>(saved, p, m.at, lane.h);
        load_tokens<T, S, kSteps>(p.b, b, plan.layouts.b, m.b);
        load_tokens<T, S, kSteps>(p.c, c, plan.layouts.c, m.c);
      }
      saved -= p.states * p.channels;
      open_chunk<T, kContiguous, S, kPacked>(a, half, steps, m);
      if constexpr (kAhead<T>) {
        if (chunk > 0) fetch_chunk<T, kContiguous, S>(a, plan.layouts, half ^ 1, kSteps, 1, m);
      }
      __syncthreads();

      // ---- consumer: the parts forward, their states kept; then the parts backward
      const auto kept = [&](int part) { return !kAhead<T> || part + 1 < parts; };
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        if (kept(part)) m.keep(part, lane.h);
        if (part + 1 < parts) walk_forward<S, kPart, kPacked, kConstant>(p, m, part * kPart, own, lane);
      }
#pragma unroll 1
      for (int part = parts - 1; part >= 0; --part) {
        float* const sums = m.token_sums[part % Memory::kBuffers];
        const int begin = part * kPart;
        if constexpr (kBack < kPart) {
          m.restore(part, lane.h);
          walk_forward<S, kPart - kBack, kPacked, kConstant>(p, m, begin, own, lane);
          walk_back<S, kBack, kPacked, kConstant>(p, m, begin + kBack, sums + kBack * 2 * S::kStates, own, lane);
        }
        if (kept(part)) m.restore(part, lane.h);
        if constexpr (kAhead<T>) {  // over what has been restored
          if (part == 0 && chunk > 0) fetch_saved<S>(saved, p, m);
        }
        walk_back<S, kBack, kPacked, kConstant>(p, m, begin, sums, own, lane);
        __syncthreads();  // with two buffers nobody writes sums that are read
        if (!(p.b.constant && p.c.constant)) store_token_sums<S>(a, sums, begin, steps, block == first_block, m);
        if constexpr (Memory::kBuffers == 1) __syncthreads();
      }
      close_chunk<T, kContiguous, S, kPacked>(a, half, steps, m);
      m.add_rates(lane.da);
      __syncthreads();
      if (threadIdx.x < kTensors) m.begins[threadIdx.x] -= kGpuChunk * plan.tensors.views[threadIdx.x].step;
      steps = kSteps;
    }

    // ---- epilogue of a channel block: sums of its channels
    const Position at = m.at;
    const int64_t rows = channel_rows(p);
    const View channel_sums{a.channel_sums, DType::kFloat32, rows * p.channels, 1, p.channels};
    if (a.dinitial.data != nullptr) store_elements<S>(a.dinitial, p, at, at.batch, 0, lane.dh);
    int64_t row = p.states;
    m.rates(lane.da);
    store_elements<S>(channel_sums, p, at, at.batch, 0, lane.da);
    if constexpr (kConstant) {
      if (p.b.constant) store_elements<S>(channel_sums, p, at, at.batch, row, own.db), row += p.states;
      if (p.c.constant) store_elements<S>(channel_sums, p, at, at.batch, row, own.dc), row += p.states;
    }
    store_channel_sums<T, kContiguous, S>(at, m, channel_sums, row);
    __syncthreads();
  }
}

}  // namespace mamba::scan::gpu
