// The selective scan's forward on a GPU: tiles of 32 steps. Per step, channel and state a power of two, two products
// and two sums; the powers (16 a cycle and multiprocessor) are what it waits for.
#pragma once

#include "kernels/mamba/cuda/scan.cuh"

namespace mamba::scan::gpu {

constexpr int kTile = 32;  // half a chunk: every second tile begins at a checkpoint

template <class S>
struct ForwardMemory {
  static constexpr int kInputs = skewed(S::kChannels, 2 * kTile), kOutputs = skewed(S::kChannels, kTile);
  float inputs[kInputs];  // [channel][step]: Δ and Δ u
  float y[kOutputs];      // [channel][step]
  float b[kTile * S::kPitch], c[kTile * S::kPitch];
  float skip[S::kChannels], bias[S::kChannels];  // D and the bias of delta
  Marks marks;
};
__device__ __forceinline__ float* inputs_at(float* inputs, int channel, int step, int row) {
  return inputs + channel * row + skew(channel) + 2 * step;
}

template <class S>
__device__ __forceinline__ void load_channels(const Problem& p, const Place& at, float* skip, float* bias) {
  for (int c = int(threadIdx.x); c < S::kChannels; c += kThreads) {
    skip[c] = c < at.channels ? read_or_zero(p.d, at.channel + c) : 0.f;
    bias[c] = c < at.channels ? read_or_zero(p.delta_bias, at.channel + c) : 0.f;
  }
}

// The walk over a tile's steps, four at a time: h and y's part of it.
template <class S, bool kPacked, bool kConstant>
__device__ __forceinline__ void walk(const Problem& p, ForwardMemory<S>& m, int steps,
                                     const float (&rate)[S::kEach][S::kPer], const float (&own_b)[S::kEach][S::kPer],
                                     const float (&own_c)[S::kEach][S::kPer], float (&h)[S::kEach][S::kPer]) {
  const int lane = int(threadIdx.x) % S::kLanes, first = lane * S::kPer;
#pragma unroll 1
  for (int group = 0; group < steps; group += 4) {
    float part[S::kEach][4] = {}, inputs[S::kEach][8];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(inputs_at(m.inputs, S::channel(e), group, 2 * kTile), inputs[e]);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      float b[S::kPer], c[S::kPer];
      load_shared(m.b + (group + s) * S::kPitch + first, b);
      load_shared(m.c + (group + s) * S::kPitch + first, c);
      bool enters = true;
      if constexpr (kPacked) enters = m.marks.enters[group + s] != 0.f;
#pragma unroll
      for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
        for (int n = 0; n < S::kPer; ++n) {
          float before = h[e][n], by_b = b[n], by_c = c[n];
          if constexpr (kPacked) before = enters ? before : 0.f;
          if constexpr (kConstant) {
            by_b = p.b.constant ? own_b[e][n] : by_b;
            by_c = p.c.constant ? own_c[e][n] : by_c;
          }
          h[e][n] = exp2(inputs[e][2 * s] * rate[e][n]) * before + inputs[e][2 * s + 1] * by_b;
          part[e][s] += by_c * h[e][n];
        }
      }
    }
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) {
      const float y = sum_four<S::kLanes>(part[e]);
      const int channel = S::channel(e);
      if (lane < 4) m.y[channel * kTile + skew(channel) + group + lane] = y;
    }
  }
}

template <class T, Along kAlong, class S, bool kPacked, bool kConstant>
__global__ void __launch_bounds__(kThreads, kAlong != Along::kAny && !kConstant ? 4 : 2)
    forward(const Forward a, int64_t blocks, const TokenLayouts tokens) {
  constexpr int kWide = kAlong == Along::kAny ? 1 : kVector;
  extern __shared__ __align__(16) float memory[];
  ForwardMemory<S>& m = *reinterpret_cast<ForwardMemory<S>*>(memory);
  const Problem& p = a.of;
  const int64_t item = blockIdx.x, size = p.channels / p.groups, first_channel = item % blocks * S::kChannels;
  const int64_t group = item / blocks % p.groups, left = size - first_channel;
  const Place at{item / blocks / p.groups, group, group * size + first_channel,
                 int(left < S::kChannels ? left : S::kChannels)};
  float rate[S::kEach][S::kPer], h[S::kEach][S::kPer], own_b[S::kEach][S::kPer] = {}, own_c[S::kEach][S::kPer] = {};
  load_numbers<S>(p.a, p, at, 0, kLog2E, rate);
  load_numbers<S>(p.initial, p, at, at.batch, 1.f, h);
  if constexpr (kConstant) {
    if (p.b.constant) load_numbers<S>(p.b.view, p, at, 0, 1.f, own_b);
    if (p.c.constant) load_numbers<S>(p.c.view, p, at, 0, 1.f, own_c);
  }
  load_channels<S>(p, at, m.skip, m.bias);
  int32_t current = -1;
  for (int64_t first = 0; first < p.length; first += kTile) {
    const int steps = int(p.length - first < kTile ? p.length - first : kTile);
    if (a.checkpoints.data != nullptr && first % kChunk == 0)
      store_numbers<S>(a.checkpoints, p, at, at.batch, first / kChunk * p.states, h);
    if constexpr (kPacked) find_marks<kTile>(p.sequence, at.batch, first, p.length, current, m.marks);
    __syncthreads();  // also: the last tile's y is read
    const Marks* const marks = kPacked ? &m.marks : nullptr;
    load_tokens<T, S, kTile>(p.b, p, at, first, 0, marks, tokens.b, m.b);
    load_tokens<T, S, kTile>(p.c, p, at, first, 0, marks, tokens.c, m.c);
    for_vectors<kAlong, S::kChannels, kTile, true>([&](int channel, int step) {
      const bool inside = channel < at.channels && step < steps;
      float u[kWide], delta[kWide];
      load_vector<kAlong, T>(p.u, at, channel, first + step, inside, u);
      load_vector<kAlong, T>(p.delta, at, channel, first + step, inside, delta);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const int c = channel + (kAlong == Along::kChannels ? e : 0), s = step + (kAlong == Along::kSteps ? e : 0);
        const float raw = delta[e] + m.bias[c];
        bool counts = inside;
        if constexpr (kPacked) counts = counts && m.marks.counts[s] != 0.f;
        const float wide = counts ? p.softplus ? softplus(raw) : raw : 0.f;
        *reinterpret_cast<float2*>(inputs_at(m.inputs, c, s, 2 * kTile)) =
            make_float2(wide, counts ? wide * u[e] : 0.f);
      }
    });
    __syncthreads();
    walk<S, kPacked, kConstant>(p, m, steps, rate, own_b, own_c, h);
    __syncthreads();
    for_vectors<kAlong, S::kChannels, kTile, true>([&](int channel, int step) {
      if (channel >= at.channels || step >= steps) return;
      float u[kWide], z[kWide];  // u once more, from the cache: held, it would cost a block its registers
      load_vector<kAlong, T>(p.u, at, channel, first + step, true, u);
      load_vector<kAlong, T>(p.z, at, channel, first + step, p.z.data != nullptr, z);
      float y[kWide];
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const int c = channel + (kAlong == Along::kChannels ? e : 0), s = step + (kAlong == Along::kSteps ? e : 0);
        y[e] = m.y[c * kTile + skew(c) + s] + m.skip[c] * u[e];
        if (p.z.data != nullptr) y[e] *= gate_of(z[e]).value;
        if constexpr (kPacked) y[e] = m.marks.counts[s] != 0.f ? y[e] : 0.f;
      }
      store_vector<kAlong, T>(a.y, at, channel, first + step, y);
    });
    if constexpr (kPacked) __syncthreads();  // the marks are read
  }
  store_numbers<S>(a.last, p, at, at.batch, 0, h);
}

}  // namespace mamba::scan::gpu
