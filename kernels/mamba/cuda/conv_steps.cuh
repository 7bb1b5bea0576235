// The convolution where steps lie beside each other, and of any other layout but channels beside each other. A thread
// has kVector steps of one channel; what comes before them is the neighbouring lane's. T = void: elements one at a
// time, of any type, stride and alignment.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/mamba/cuda/conv_filter.cuh"

namespace mamba::conv::gpu {

using kernels::Divider;

// Steps [t, t + kVector) of a row, behind the kTaps - 1 before them. All lanes of a warp come here; lane 0 and those
// at a row's start read their history from memory, the others have it from the lane before them.
template <class T, int kTaps>
__device__ __forceinline__ void load_steps(const Problem& p, int64_t batch, int64_t channel, int64_t t, bool follows,
                                           float (&x)[kTaps - 1 + kVector]) {
  constexpr int kHalo = kTaps - 1;
  if constexpr (std::is_void_v<T>) {
#pragma unroll
    for (int s = 0; s < kHalo + kVector; ++s) {
      const int64_t at = t + s - kHalo;
      const bool wanted = at < p.length && s > kHalo - p.width;
      x[s] = wanted ? input(p, batch, channel, at) : 0.f;
    }
  } else {
    float own[kVector];
    const int64_t at = batch * p.x.batch + channel * p.x.channel + t;
    if (t < p.length) {
      load_vector<T>(p.x, at, own);
    } else {
#pragma unroll
      for (int s = 0; s < kVector; ++s) own[s] = 0.f;
    }
#pragma unroll
    for (int s = 0; s < kVector; ++s) x[kHalo + s] = own[s];
#pragma unroll
    for (int s = 0; s < kHalo; ++s) x[s] = __shfl_up_sync(kAllLanes, own[kVector - kHalo + s], 1);
    if (t == 0) {
#pragma unroll
      for (int s = 0; s < kHalo; ++s) x[s] = before(p, batch, channel, s - kHalo);
    } else if (!follows && t < p.length + kVector) {
      load_vector<T>(p.x, at - kVector, own);
#pragma unroll
      for (int s = 0; s < kHalo; ++s) x[s] = own[kVector - kHalo + s];
    }
  }
}

// Whose step is it: of [t - kHalo, t + kVector + more), beyond the length -1.
template <int kHalo, int kCount>
__device__ __forceinline__ void load_sequences(const Problem& p, int64_t batch, int64_t t, int32_t (&own)[kCount]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    const int64_t at = t + s - kHalo;
    own[s] = at < p.length ? sequence_or_first(p, batch, at) : -1;
  }
}

// p_t of step s of x.
template <int kTaps, bool kPacked>
__device__ __forceinline__ float convolved(const Filter<kTaps>& f, int width, const float* x, const int32_t* own) {
  float sum = f.bias;
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    bool counts = j < width;
    if constexpr (kPacked) counts = counts && own[-j] == own[0];
    if (counts) sum += f.w[j] * x[-j];
  }
  return sum;
}

struct StepsPlan {
  uint32_t items, per_row;  // threads with a vector each, or warps: of a launch, of a row
  int64_t first_row;
  Divider by_row, by_channels;
};

template <class T, int kTaps, bool kPacked>
__global__ void __launch_bounds__(kThreads) forward_steps(const Forward a, const StepsPlan plan) {
  constexpr int kHalo = kTaps - 1;
  const Problem& p = a.of;
  const uint32_t n = blockIdx.x * kThreads + threadIdx.x, last = plan.items - 1, mine = n < last ? n : last;
  const uint32_t row_of = plan.by_row(mine), vector = mine - row_of * plan.per_row;
  const uint32_t row = uint32_t(plan.first_row + row_of), batch = plan.by_channels(row);
  const int64_t channel = row - batch * uint32_t(p.channels), t = int64_t{vector} * kVector;
  float x[kHalo + kVector];
  load_steps<T, kTaps>(p, batch, channel, t, n % 32 != 0, x);
  const Filter<kTaps> filter = load_filter<kTaps>(p, channel);
  int32_t own[kPacked ? kHalo + kVector : 1] = {};
  if constexpr (kPacked) load_sequences<kHalo>(p, batch, t, own);
  float y[kVector];
#pragma unroll
  for (int s = 0; s < kVector; ++s) {
    float v = convolved<kTaps, kPacked>(filter, p.width, x + kHalo + s, own + (kPacked ? kHalo + s : 0));
    if (p.silu) v *= sigmoid(v);
    if constexpr (kPacked) v = own[kHalo + s] < 0 ? 0.f : v;
    y[s] = v;
  }
  if (n > last) return;
  if constexpr (std::is_void_v<T>) {
#pragma unroll
    for (int s = 0; s < kVector; ++s) {
      if (t + s < p.length) write(a.y, batch, channel, t + s, y[s]);
    }
  } else {
    store_vector<T>(a.y, batch * a.y.batch + channel * a.y.channel + t, y);
  }
}

// The same for long rows: a warp has kRepeat x 32 vectors of one. The filter's loads and a thread's place in the tensor
// are instructions as many as a vector's own: here they are shared by kRepeat.
constexpr int kRepeat = 4;

template <class T, int kTaps, bool kPacked>
__global__ void __launch_bounds__(kThreads, kTaps == 4 && !kPacked ? 8 : 4)
    forward_long_steps(const Forward a, const StepsPlan plan) {
  constexpr int kHalo = kTaps - 1;
  const Problem& p = a.of;
  const int lane = int(threadIdx.x) % 32;
  const uint32_t warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  if (warp >= plan.items) return;
  const uint32_t row_of = plan.by_row(warp), part = warp - row_of * plan.per_row;
  const uint32_t row = uint32_t(plan.first_row + row_of), batch = plan.by_channels(row);
  const int64_t channel = row - batch * uint32_t(p.channels);
  const int64_t first = int64_t{part} * kRepeat * 32 * kVector, start = first + lane * kVector;
  const T* const from = static_cast<const T*>(p.x.data) + batch * p.x.batch + channel * p.x.channel;
  T* const to = static_cast<T*>(a.y.data) + batch * a.y.batch + channel * a.y.channel;
  Pack<T, kVector> loaded[kRepeat];
#pragma unroll
  for (int r = 0; r < kRepeat; ++r) {
    const int64_t t = start + r * 32 * kVector;
    if (t < p.length) loaded[r] = load<kVector>(from + t);
  }
  // The last lane keeps what comes before lane 0's next vector: the warp's last one.
  float before_warp[kVector] = {};
  if (lane == 31 && first > 0) load_floats<kVector>(from + first - kVector, before_warp);
  const Filter<kTaps> filter = load_filter<kTaps>(p, channel);
#pragma unroll
  for (int r = 0; r < kRepeat; ++r) {
    const int64_t t = start + r * 32 * kVector;
    float x[kHalo + kVector], own[kVector], y[kVector];
    unpack(loaded[r], own);
#pragma unroll
    for (int s = 0; s < kVector; ++s) x[kHalo + s] = own[s];
#pragma unroll
    for (int s = 0; s < kHalo; ++s) {
      const float last = own[kVector - kHalo + s];
      x[s] = __shfl_sync(kAllLanes, lane == 31 ? before_warp[kVector - kHalo + s] : last, (lane + 31) % 32);
      before_warp[kVector - kHalo + s] = last;
    }
    if (t == 0) {
#pragma unroll
      for (int s = 0; s < kHalo; ++s) x[s] = before(p, batch, channel, s - kHalo);
    }
    int32_t whose[kPacked ? kHalo + kVector : 1] = {};
    if constexpr (kPacked) load_sequences<kHalo>(p, batch, t, whose);
#pragma unroll
    for (int s = 0; s < kVector; ++s) {
      y[s] = convolved<kTaps, kPacked>(filter, p.width, x + kHalo + s, whose + (kPacked ? kHalo + s : 0));
      if (p.silu) y[s] *= sigmoid(y[s]);
      if constexpr (kPacked) y[s] = whose[kHalo + s] < 0 ? 0.f : y[s];
    }
    if (t < p.length) store_floats<kVector>(to + t, y);
  }
}

// ---- backward: a warp goes through a part of a row, from its end to its start, 32 x kVector steps at a time
constexpr int64_t kTile = 32 * kVector;

struct PartsPlan {
  int64_t parts, tiles, items;  // of a row; of a part; warps
};

template <class T>
__device__ __forceinline__ void load_gradient(const Backward& a, int64_t batch, int64_t channel, int64_t t,
                                              float (&dy)[kVector]) {
  const int64_t length = a.of.length;
  if constexpr (std::is_void_v<T>) {
#pragma unroll
    for (int s = 0; s < kVector; ++s) dy[s] = t + s < length ? read(a.dy, batch, channel, t + s) : 0.f;
  } else if (t < length) {
    load_vector<T>(a.dy, batch * a.dy.batch + channel * a.dy.channel + t, dy);
  } else {
#pragma unroll
    for (int s = 0; s < kVector; ++s) dy[s] = 0.f;
  }
}

// dx of columns before time 0.
template <int kTaps>
__device__ __forceinline__ void store_before(const Backward& a, int64_t batch, int64_t channel,
                                             const Filter<kTaps>& filter, const float* g, const int32_t* own) {
#pragma unroll
  for (int i = 1; i < kTaps; ++i) {
    if (i >= a.of.width) break;
    float dx = 0.f;
#pragma unroll
    for (int j = i; j < kTaps; ++j) {
      if (j < a.of.width && (own == nullptr || own[j - i] == own[0])) dx += filter.w[j] * g[j - i];
    }
    write(a.dinitial, batch, channel, a.of.width - 1 - i, dx);
  }
}

// A warp's sums of all taps and of g, to its entry of the partials.
template <int kTaps>
__device__ __forceinline__ void store_sums(const Backward& a, int64_t entry, int64_t channel,
                                           const float (&sums)[kTaps + 1]) {
  const Problem& p = a.of;
  float* to = a.partials + entry * (p.width + 1) * p.channels + channel;
#pragma unroll
  for (int j = 0; j <= kTaps; ++j) {
    const float sum = warp_sum(sums[j]);
    if (threadIdx.x % 32 == 0 && (j < p.width || j == kTaps))
      to[(j < kTaps ? p.width - 1 - j : p.width) * p.channels] = sum;
  }
}

template <class T, int kTaps, bool kPacked>
__global__ void __launch_bounds__(kThreads, kTaps == 4 ? 4 : 2) backward_steps(const Backward a, const PartsPlan plan) {
  constexpr int kHalo = kTaps - 1;
  const Problem& p = a.of;
  const int lane = int(threadIdx.x) % 32;
  const int64_t item = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (item >= plan.items) return;  // whole warps
  const int64_t row = item / plan.parts, part = item % plan.parts;
  const int64_t batch = row / p.channels, channel = row % p.channels;
  const Filter<kTaps> filter = load_filter<kTaps>(p, channel);
  const int64_t first = part * plan.tiles * kTile, end = first + plan.tiles * kTile;
  float sums[kTaps + 1] = {}, later[kHalo] = {};  // later: g of the steps behind a tile
  // The tile behind the part is there for its first steps' g alone.
  for (int64_t start = end < p.length ? end : (p.length - 1) / kTile * kTile; start >= first; start -= kTile) {
    const bool mine = start < end, works = mine || lane == 0;
    const int64_t t = works ? start + lane * kVector : p.length + kVector;
    float x[kHalo + kVector], g[kVector + kHalo], dy[kVector];
    load_gradient<T>(a, batch, channel, t, dy);
    load_steps<T, kTaps>(p, batch, channel, t, lane != 0, x);
    int32_t own[kPacked ? kHalo + kVector + kHalo : 1] = {};
    if constexpr (kPacked) load_sequences<kHalo>(p, batch, t, own);
#pragma unroll
    for (int s = 0; s < kVector; ++s) {
      g[s] = dy[s];
      if (p.silu) {
        const float v = convolved<kTaps, kPacked>(filter, p.width, x + kHalo + s, own + (kPacked ? kHalo + s : 0));
        g[s] = through_silu(dy[s], v);
      }
      // Beyond the length dy is 0, but the value may be infinite.
      g[s] = t + (std::is_void_v<T> ? s : 0) < p.length ? g[s] : 0.f;
      if constexpr (kPacked) g[s] = own[kHalo + s] < 0 ? 0.f : g[s];
    }
#pragma unroll
    for (int s = 0; s < kHalo; ++s) {
      const float next = __shfl_down_sync(kAllLanes, g[s], 1);
      g[kVector + s] = lane == 31 ? later[s] : next;
      later[s] = __shfl_sync(kAllLanes, g[s], 0);
    }
    if (!mine) continue;
    float dx[kVector];
#pragma unroll
    for (int s = 0; s < kVector; ++s) {
      dx[s] = 0.f;
      sums[kTaps] += g[s];
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        bool to = j < p.width, from = to;
        if constexpr (kPacked) {
          to = to && own[kHalo + s + j] == own[kHalo + s];
          from = from && own[kHalo + s - j] == own[kHalo + s] && own[kHalo + s] >= 0;
        }
        if constexpr (std::is_void_v<T>) from = from && t + s < p.length;
        if (to) dx[s] += filter.w[j] * g[s + j];
        if (from) sums[j] += g[s] * x[kHalo + s - j];
      }
    }
    if constexpr (std::is_void_v<T>) {
#pragma unroll
      for (int s = 0; s < kVector; ++s) {
        if (t + s < p.length) write(a.dx, batch, channel, t + s, dx[s]);
      }
    } else if (t < p.length) {
      store_vector<T>(a.dx, batch * a.dx.batch + channel * a.dx.channel + t, dx);
    }
    if (t == 0 && a.dinitial.data != nullptr)
      store_before<kTaps>(a, batch, channel, filter, g, kPacked ? own + kHalo : nullptr);
  }
  store_sums<kTaps>(a, batch * plan.parts + part, channel, sums);
}

}  // namespace mamba::conv::gpu
