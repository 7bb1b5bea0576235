// The convolution where channels lie beside each other, as transformers has them. A thread has kN channels and walks
// over some steps, the last kTaps - 1 of them in registers. T = void: a channel a thread, of any type and alignment.
#pragma once

#include "kernels/mamba/cuda/conv_filter.cuh"

namespace mamba::conv::gpu {

constexpr int kUnrolled = 4;  // steps whose loads are under way together

struct ChannelsPlan {
  int64_t vectors, parts, steps;  // of all channels; of the time; of a part
  int64_t items;                  // forward: batch x parts x vectors; backward: blocks of 32 vectors
};

template <>
struct Loaded<void, 1> {
  float value;
};

template <class T>
__device__ __forceinline__ T* channels_at(const View& v, int64_t batch, int64_t channel, int64_t t) {
  return static_cast<T*>(v.data) + batch * v.batch + channel + t * v.step;
}
template <class T, int kN>
__device__ __forceinline__ Loaded<T, kN> load_channels(const View& v, int64_t batch, int64_t channel, int64_t t) {
  if constexpr (std::is_void_v<T>)
    return {read(v, batch, channel, t)};
  else
    return load_few<kN>(channels_at<const T>(v, batch, channel, t));
}
template <class T, int kN>
__device__ __forceinline__ void unpack_channels(const Loaded<T, kN>& v, float (&f)[kN]) {
  if constexpr (std::is_void_v<T>)
    f[0] = v.value;
  else
    unpack(v, f);
}
template <class T, int kN>
__device__ __forceinline__ void store_channels(const View& v, int64_t batch, int64_t channel, int64_t t,
                                               const float (&f)[kN]) {
  if constexpr (std::is_void_v<T>)
    write(v, batch, channel, t, f[0]);
  else
    store_few<kN>(channels_at<T>(v, batch, channel, t), f);
}

template <int kTaps, int kN>
struct Filters {
  float w[kTaps][kN], bias[kN];
};
template <int kTaps, int kN>
__device__ __forceinline__ Filters<kTaps, kN> load_filters(const Problem& p, int64_t channel) {
  Filters<kTaps, kN> f;
#pragma unroll
  for (int c = 0; c < kN; ++c) {
    const Filter<kTaps> one = load_filter<kTaps>(p, channel + c);
#pragma unroll
    for (int j = 0; j < kTaps; ++j) f.w[j][c] = one.w[j];
    f.bias[c] = one.bias;
  }
  return f;
}

// A step's elements and those of the kTaps - 1 before it, [0] the newest.
template <int kTaps, int kN>
struct History {
  float x[kTaps][kN];
  int32_t own[kTaps];  // whose steps they are

  __device__ __forceinline__ void push() {
#pragma unroll
    for (int j = kTaps - 1; j > 0; --j) {
      own[j] = own[j - 1];
#pragma unroll
      for (int c = 0; c < kN; ++c) x[j][c] = x[j - 1][c];
    }
  }
  // Those before t; the next push() makes room for t itself.
  template <class T, bool kPacked>
  __device__ __forceinline__ void fill(const Problem& p, int64_t batch, int64_t channel, int64_t t) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      const int64_t at = t - 1 - j;
      own[j] = 0;
#pragma unroll
      for (int c = 0; c < kN; ++c) x[j][c] = 0.f;
      if (j + 1 >= p.width) continue;
      if constexpr (kPacked) own[j] = sequence_or_first(p, batch, at);
      if (at >= 0) {
        unpack_channels(load_channels<T, kN>(p.x, batch, channel, at), x[j]);
      } else {
#pragma unroll
        for (int c = 0; c < kN; ++c) x[j][c] = before(p, batch, channel + c, at);
      }
    }
  }
  template <bool kPacked>
  __device__ __forceinline__ bool counts(int j, int width) const {
    bool yes = j < width;
    if constexpr (kPacked) yes = yes && own[j] == own[0];
    return yes;
  }
  template <bool kPacked>
  __device__ __forceinline__ void convolve(const Filters<kTaps, kN>& f, int width, float (&out)[kN]) const {
#pragma unroll
    for (int c = 0; c < kN; ++c) out[c] = f.bias[c];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (!counts<kPacked>(j, width)) continue;
#pragma unroll
      for (int c = 0; c < kN; ++c) out[c] += f.w[j][c] * x[j][c];
    }
  }
};

// 16 bytes of 16-bit elements.
template <class T>
constexpr int kForwardChannels = std::is_void_v<T> ? 1 : 8;

template <class T, int kTaps, bool kPacked>
__global__ void __launch_bounds__(kThreads, kTaps == 4 ? 3 : 2)
    forward_channels(const Forward a, const ChannelsPlan plan) {
  constexpr int kN = kForwardChannels<T>;
  const Problem& p = a.of;
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= plan.items) return;
  const int64_t rest = item / plan.vectors, channel = item % plan.vectors * kN;
  const int64_t batch = rest / plan.parts, first = rest % plan.parts * plan.steps;
  const int64_t end = first + plan.steps < p.length ? first + plan.steps : p.length;
  const Filters<kTaps, kN> filter = load_filters<kTaps, kN>(p, channel);
  History<kTaps, kN> past;
  past.template fill<T, kPacked>(p, batch, channel, first);
  for (int64_t t = first; t < end; t += kUnrolled) {
    Loaded<T, kN> x[kUnrolled];
#pragma unroll
    for (int s = 0; s < kUnrolled; ++s) {
      if (t + s < end) x[s] = load_channels<T, kN>(p.x, batch, channel, t + s);
    }
#pragma unroll
    for (int s = 0; s < kUnrolled; ++s) {
      if (t + s >= end) break;
      past.push();
      if constexpr (kPacked) past.own[0] = sequence_at(p.sequence, batch, t + s);
      unpack_channels(x[s], past.x[0]);
      float y[kN];
      past.template convolve<kPacked>(filter, p.width, y);
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        if (p.silu) y[c] *= sigmoid(y[c]);
        if constexpr (kPacked) y[c] = past.own[0] < 0 ? 0.f : y[c];
      }
      store_channels<T>(a.y, batch, channel, t + s, y);
    }
  }
}

// ---- backward: a warp has 32 x kN channels, a block's four warps parts of the time that follow each other
constexpr int kWarps = kThreads / 32;
// Filters, sums of their gradients, and steps before and behind are 4 x kTaps registers a channel: of 8 channels two
// blocks' threads would fit a multiprocessor, too few for the memory.
template <class T>
constexpr int kBackwardChannels = std::is_void_v<T> ? 1 : 4;

// Sums of the block's warps, in order, to row `row` of its partials.
template <int kN>
__device__ __forceinline__ void store_partial(float (&sums)[kN], float (&memory)[kWarps][32][kN + 1], float* to,
                                              int64_t channels, bool writes) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kN; ++c) memory[warp][lane][c] = sums[c];
  __syncthreads();
  if (warp != 0 || !writes) return;
#pragma unroll
  for (int c = 0; c < kN; ++c) {
    float sum = memory[0][lane][c];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += memory[w][lane][c];
    if (c < channels) to[c] = sum;
  }
}

// Sums of all taps and of g: to the block's entry of the partials. All threads of a block come here.
template <int kTaps, int kN>
__device__ __forceinline__ void store_partials(const Backward& a, int64_t entry, int64_t channel, bool writes,
                                               float (&sums)[kTaps + 1][kN]) {
  __shared__ float memory[kWarps][32][kN + 1];
  const Problem& p = a.of;
  float* to = a.partials + entry * (p.width + 1) * p.channels + channel;
#pragma unroll
  for (int j = 0; j <= kTaps; ++j) {
    if (j < kTaps && j >= p.width) continue;
    const int row = j < kTaps ? p.width - 1 - j : p.width;
    store_partial<kN>(sums[j], memory, to + row * p.channels, p.channels - channel, writes);
  }
}

// What a thread of the backward goes through: steps [first, end) of kN channels.
struct BackwardPlace {
  int64_t vector, entry, channel, batch, first, end;
};
template <int kN>
__device__ __forceinline__ BackwardPlace backward_place(const Problem& p, const ChannelsPlan& plan) {
  const int64_t vector = int64_t{blockIdx.x} % plan.items * 32 + threadIdx.x % 32, entry = blockIdx.x / plan.items;
  const int64_t first = (entry % plan.parts * kWarps + threadIdx.x / 32) * plan.steps;
  const int64_t end = first + plan.steps < p.length ? first + plan.steps : p.length;
  return {vector, entry, vector * kN, entry / plan.parts, first, end};
}

// What one step gives: g, and what it takes its place in, the gradients due j steps back.
template <int kTaps, int kN, bool kPacked>
struct Due {
  float dx[kTaps][kN];

  __device__ __forceinline__ void pass() {  // a step
#pragma unroll
    for (int j = kTaps - 1; j > 0; --j) {
#pragma unroll
      for (int c = 0; c < kN; ++c) dx[j][c] = dx[j - 1][c];
    }
#pragma unroll
    for (int c = 0; c < kN; ++c) dx[0][c] = 0.f;
  }
  __device__ __forceinline__ void add(const History<kTaps, kN>& past, const Filters<kTaps, kN>& filter, int width,
                                      const float (&g)[kN]) {
    pass();
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      if (!past.template counts<kPacked>(j, width)) continue;
#pragma unroll
      for (int c = 0; c < kN; ++c) dx[j][c] += filter.w[j][c] * g[c];
    }
  }
};

// g of the newest step of the history, 0 where it does not count.
template <int kTaps, int kN, bool kPacked>
__device__ __forceinline__ void differentiate(const Problem& p, const History<kTaps, kN>& past,
                                              const Filters<kTaps, kN>& filter, bool counts, const float (&dy)[kN],
                                              float (&g)[kN]) {
  past.template convolve<kPacked>(filter, p.width, g);
#pragma unroll
  for (int c = 0; c < kN; ++c) {
    g[c] = p.silu ? through_silu(dy[c], g[c]) : dy[c];
    g[c] = counts ? g[c] : 0.f;
  }
}

// dx of the columns before time 0, by the first steps once more: rare, and kept out of the loop over all steps.
template <class T, int kTaps, int kN, bool kPacked>
__device__ void store_initial(const Backward& a, int64_t batch, int64_t channel, const Filters<kTaps, kN>& filter) {
  const Problem& p = a.of;
  History<kTaps, kN> past;
  past.template fill<T, kPacked>(p, batch, channel, 0);
  Due<kTaps, kN, kPacked> due = {};
  for (int64_t t = 0; t < kTaps - 1; ++t) {
    const bool known = t < p.length;
    float dy[kN] = {}, g[kN];
    past.push();
    past.own[0] = -1;
    if constexpr (kPacked) past.own[0] = known ? sequence_at(p.sequence, batch, t) : -1;
#pragma unroll
    for (int c = 0; c < kN; ++c) past.x[0][c] = 0.f;
    if (known) {
      unpack_channels(load_channels<T, kN>(p.x, batch, channel, t), past.x[0]);
      unpack_channels(load_channels<T, kN>(a.dy, batch, channel, t), dy);
    }
    differentiate<kTaps, kN, kPacked>(p, past, filter, known && (!kPacked || past.own[0] >= 0), dy, g);
    due.add(past, filter, p.width, g);
    const int64_t done = t - (kTaps - 1);
    if (done <= -p.width) continue;
#pragma unroll
    for (int c = 0; c < kN; ++c) write(a.dinitial, batch, channel + c, done + p.width - 1, due.dx[kTaps - 1][c]);
  }
}

// dx is complete kTaps - 1 steps after its x.
template <class T, int kTaps, bool kPacked>
__global__ void __launch_bounds__(kThreads, kTaps == 4 ? kPacked ? 3 : 4 : 2)
    backward_channels(const Backward a, const ChannelsPlan plan) {
  constexpr int kN = kBackwardChannels<T>, kHalo = kTaps - 1;
  const Problem& p = a.of;
  const auto [vector, entry, channel, batch, first, end] = backward_place<kN>(p, plan);
  const int64_t known = end + p.width - 1 < p.length ? end + p.width - 1 : p.length;  // steps whose g reaches dx
  float sums[kTaps + 1][kN] = {};
  if (vector < plan.vectors && first < end) {
    const Filters<kTaps, kN> filter = load_filters<kTaps, kN>(p, channel);
    if (first == 0 && a.dinitial.data != nullptr) store_initial<T, kTaps, kN, kPacked>(a, batch, channel, filter);
    History<kTaps, kN> past;
    past.template fill<T, kPacked>(p, batch, channel, first);
    Due<kTaps, kN, kPacked> due = {};
    for (int64_t t = first; t < end + kHalo; t += kUnrolled) {
      Loaded<T, kN> x[kUnrolled] = {}, gradient[kUnrolled] = {};
#pragma unroll
      for (int s = 0; s < kUnrolled; ++s) {
        if (t + s >= known) continue;
        x[s] = load_channels<T, kN>(p.x, batch, channel, t + s);
        gradient[s] = load_channels<T, kN>(a.dy, batch, channel, t + s);
      }
#pragma unroll
      for (int s = 0; s < kUnrolled; ++s) {
        past.push();
        past.own[0] = -1;
        if constexpr (kPacked) past.own[0] = t + s < known ? sequence_at(p.sequence, batch, t + s) : -1;
        const bool counts = t + s < known && (!kPacked || past.own[0] >= 0), sum = counts && t + s < end;
        float g[kN], dy[kN];
        unpack_channels(x[s], past.x[0]);
        unpack_channels(gradient[s], dy);
        differentiate<kTaps, kN, kPacked>(p, past, filter, counts, dy, g);
        due.add(past, filter, p.width, g);
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          if (!sum || !past.template counts<kPacked>(j, p.width)) continue;
#pragma unroll
          for (int c = 0; c < kN; ++c) sums[j][c] += g[c] * past.x[j][c];
        }
#pragma unroll
        for (int c = 0; c < kN; ++c) sums[kTaps][c] += sum ? g[c] : 0.f;
        const int64_t done = t + s - kHalo;
        if (done >= first && done < end) store_channels<T>(a.dx, batch, channel, done, due.dx[kHalo]);
      }
    }
  }
  store_partials<kTaps, kN>(a, entry, channel, vector < plan.vectors, sums);
}

}  // namespace mamba::conv::gpu
