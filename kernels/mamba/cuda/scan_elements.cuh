// The elementwise parts of the scan's backward: what a chunk's walk wants in shared memory, and what becomes of what it
// leaves there. u, delta, z and dy are read twice, the second time from the cache.
#pragma once

#include "kernels/mamba/cuda/scan.cuh"

namespace mamba::scan::gpu {

constexpr int kSteps = int(kChunk);

// 110 KB for 16 states: two blocks a multiprocessor.
template <class S>
struct BackwardMemory {
  // Of many states B and C are there for 8 steps at a time, and the sums of a part have one buffer.
  static constexpr bool kByPart = S::kStates > 64;
  static constexpr int kTokens = kByPart ? 8 : kSteps, kBuffers = kByPart ? 1 : 2, kElements = S::kEach * S::kPer;

  float inputs[S::skewed(2 * kSteps)];  // [channel][step]: Δ and Δ u, then sum_n dh B and sum_n A log2 e q
  float gradients[S::skewed(kSteps)];   // [channel][step]: dy before the gate, then y
  float b[kTokens * S::kPitch], c[kTokens * S::kPitch];
  float states[kSteps / 8][kElements / 4][kThreads][4];     // before every 8th step, of each lane its own
  float token_sums[kBuffers][kWarps * 8 * 2 * S::kStates];  // of each warp: [step][dB, dC]
  float sums[2 * kVector][kThreads];  // each thread's of dD and dbias: in registers the walk would miss them
  float skip[S::kChannels], bias[S::kChannels];
  Marks marks;

  __device__ __forceinline__ float* input(int channel, int step) {
    return inputs + S::row(channel, 2 * kSteps) + 2 * step;
  }
  __device__ __forceinline__ const float* input(int channel, int step) const {
    return inputs + S::row(channel, 2 * kSteps) + 2 * step;
  }
  __device__ __forceinline__ float* gradient(int channel, int step) {
    return gradients + S::row(channel, kSteps) + step;
  }
  __device__ __forceinline__ int row(int step) const { return kByPart ? 0 : step; }  // of b and c
  __device__ __forceinline__ void keep(int part, const float (&h)[S::kEach][S::kPer]) {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      const auto of = [&](int k) { return h[(i + k) / S::kPer][(i + k) % S::kPer]; };
      *reinterpret_cast<float4*>(states[part][i / 4][threadIdx.x]) = make_float4(of(0), of(1), of(2), of(3));
    }
  }
  __device__ __forceinline__ void restore(int part, float (&h)[S::kEach][S::kPer]) const {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      float f[4];
      load_shared(states[part][i / 4][threadIdx.x], f);
#pragma unroll
      for (int k = 0; k < 4; ++k) h[(i + k) / S::kPer][(i + k) % S::kPer] = f[k];
    }
  }
};

__device__ __forceinline__ int64_t channel_rows(const Problem& p) {
  return p.states * (1 + (p.b.constant ? 1 : 0) + (p.c.constant ? 1 : 0)) + 2;
}

template <class S>
__device__ __forceinline__ void load_channels(const Problem& p, const Place& at, BackwardMemory<S>& m) {
  for (int c = int(threadIdx.x); c < S::kChannels; c += kThreads) {
    m.skip[c] = c < at.channels ? read_or_zero(p.d, at.channel + c) : 0.f;
    m.bias[c] = c < at.channels ? read_or_zero(p.delta_bias, at.channel + c) : 0.f;
  }
}
template <class T, class S, int kCount>
__device__ __forceinline__ void load_tokens_of(const Problem& p, const Place& at, int64_t first, int offset,
                                               const Marks* marks, const TokenLayouts& tokens, BackwardMemory<S>& m) {
  load_tokens<T, S, kCount>(p.b, p, at, first, offset, marks, tokens.b, m.b);
  load_tokens<T, S, kCount>(p.c, p, at, first, offset, marks, tokens.c, m.c);
}
template <class S>
__device__ __forceinline__ void load_saved(const View& v, const Problem& p, const Place& at, int64_t chunk,
                                           float (&h)[S::kEach][S::kPer]) {
  View of_chunk = v;
  of_chunk.data = static_cast<float*>(v.data) + chunk * p.states * v.step;
  load_numbers<S>(of_chunk, p, at, at.batch, 1.f, h);
}

// dD and dbias of a thread: of the 8 channels of its vectors, of its 4 rows of steps, or of one channel.
template <Along kAlong>
constexpr int kSums = kAlong == Along::kChannels ? kVector
                      : kAlong == Along::kSteps  ? 4
                                                 : 1;

__device__ __forceinline__ float softplus_slope(float raw) { return raw > 20.f ? 1.f : sigmoid(raw); }

template <class T, Along kAlong, class S, bool kPacked>
__device__ __forceinline__ void open_chunk(const Backward& a, const Place& at, int64_t first, int steps,
                                           BackwardMemory<S>& m) {
  constexpr int kWide = gpu::kWide<kAlong>;
  const Problem& p = a.of;
  for_vectors<kAlong, S::kChannels, kSteps>([&](int, int channel, int step) {
    const bool inside = channel < at.channels && step < steps;
    float u[kWide], delta[kWide], dy[kWide], z[kWide];
    load_vector<kAlong, T>(p.u, at, channel, first + step, inside, u);
    load_vector<kAlong, T>(p.delta, at, channel, first + step, inside, delta);
    load_vector<kAlong, T>(a.dy, at, channel, first + step, inside, dy);
    load_vector<kAlong, T>(p.z, at, channel, first + step, inside && p.z.data != nullptr, z);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const int c = channel + (kAlong == Along::kChannels ? e : 0), s = step + (kAlong == Along::kSteps ? e : 0);
      bool counts = inside;
      if constexpr (kPacked) counts = counts && m.marks.counts[s] != 0.f;
      const float raw = delta[e] + m.bias[c], wide = counts ? p.softplus ? softplus(raw) : raw : 0.f;
      if (p.z.data != nullptr) dy[e] *= gate_of(z[e]).value;
      *reinterpret_cast<float2*>(m.input(c, s)) = make_float2(wide, counts ? wide * u[e] : 0.f);
      *m.gradient(c, s) = counts ? dy[e] : 0.f;
    }
  });
}

template <class T, Along kAlong, class S, bool kPacked>
__device__ __forceinline__ void close_chunk(const Backward& a, const Place& at, int64_t first, int steps,
                                            BackwardMemory<S>& m) {
  constexpr int kWide = gpu::kWide<kAlong>, kOwn = kSums<kAlong>;
  const Problem& p = a.of;
  float by_d[kOwn] = {}, by_bias[kOwn] = {};
  for_vectors<kAlong, S::kChannels, kSteps>([&](int row, int channel, int step) {
    if (channel >= at.channels || step >= steps) return;
    float u[kWide], delta[kWide], dy[kWide], z[kWide], du[kWide], ddelta[kWide], dz[kWide];
    load_vector<kAlong, T>(p.u, at, channel, first + step, true, u);
    load_vector<kAlong, T>(p.delta, at, channel, first + step, true, delta);
    load_vector<kAlong, T>(a.dy, at, channel, first + step, true, dy);
    load_vector<kAlong, T>(p.z, at, channel, first + step, p.z.data != nullptr, z);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const int c = channel + (kAlong == Along::kChannels ? e : 0), s = step + (kAlong == Along::kSteps ? e : 0);
      bool counts = true;
      if constexpr (kPacked) counts = m.marks.counts[s] != 0.f;
      const float raw = delta[e] + m.bias[c], wide = p.softplus ? softplus(raw) : raw;
      const float slope = p.softplus ? softplus_slope(raw) : 1.f;
      const float2 by = *reinterpret_cast<const float2*>(m.input(c, s));
      float gradient = dy[e];
      if (p.z.data != nullptr) {
        const Gate gate = gate_of(z[e]);
        gradient *= gate.value;
        dz[e] = counts ? dy[e] * gate.slope * (*m.gradient(c, s) + m.skip[c] * u[e]) : 0.f;
      }
      ddelta[e] = counts ? (u[e] * by.x + by.y * kLn2) * slope : 0.f;
      du[e] = counts ? m.skip[c] * gradient + wide * by.x : 0.f;
      const float by_skip = counts ? gradient * u[e] : 0.f;
      if constexpr (kAlong == Along::kSteps) {
        by_d[row] += by_skip, by_bias[row] += ddelta[e];
      } else {  // 16 registers beside the walk's would not fit
        m.sums[e][threadIdx.x] += by_skip, m.sums[kVector + e][threadIdx.x] += ddelta[e];
      }
    }
    store_vector<kAlong, T>(a.du, at, channel, first + step, du);
    store_vector<kAlong, T>(a.ddelta, at, channel, first + step, ddelta);
    if (p.z.data != nullptr) store_vector<kAlong, T>(a.dz, at, channel, first + step, dz);
  });
  if constexpr (kAlong == Along::kSteps) {
#pragma unroll
    for (int e = 0; e < kOwn; ++e) m.sums[e][threadIdx.x] += by_d[e], m.sums[kVector + e][threadIdx.x] += by_bias[e];
  }
}

// The threads' sums of each channel, in order, to rows `row` and the next of the block's.
template <Along kAlong, class S>
__device__ __forceinline__ void store_channel_sums(const Place& at, const BackwardMemory<S>& m, const View& to,
                                                   int64_t row) {
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * S::kChannels; i += kThreads) {
    const int channel = i % S::kChannels, which = i / S::kChannels;
    if (channel >= at.channels) continue;
    float sum = 0.f;
    const auto add = [&](int thread, int e) { sum += m.sums[which * kVector + e][thread]; };
    if constexpr (kAlong == Along::kChannels) {
      for (int t = channel / kVector; t < kThreads; t += S::kChannels / kVector) add(t, channel % kVector);
    } else if constexpr (kAlong == Along::kSteps) {  // of for_vectors' rows: channel = row % 8 * 8 + row / 8
      const int line = channel % (S::kChannels / 8) * 8 + channel / (S::kChannels / 8), first = line % 16 * 8;
      for (int t = first; t < first + 8; ++t) add(t, line / 16);
    } else {
      for (int t = channel; t < kThreads; t += S::kChannels) add(t, 0);
    }
    write(to, at.batch, at.channel + channel, row + which, sum);
  }
}

}  // namespace mamba::scan::gpu
