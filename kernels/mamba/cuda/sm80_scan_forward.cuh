// The selective scan's forward on a GPU: tiles of 32 steps. Per step, channel and state a power of two, two products
// and two sums; the powers (16 a cycle and multiprocessor) are what it waits for.
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_scan.cuh"

namespace mamba::scan::gpu {

constexpr int kTile = 32;  // steps; each begins at a checkpoint

template <class T, Contiguous kContiguous, class S>
struct ForwardMemory {
  static constexpr int kCount = kVectors<kContiguous, S::kChannels, kTile>;
  Raw<T, kCount> u[2], delta, z;  // u's next tile comes while y still wants this one
  Raw<T, 1> tokens;
  alignas(16) float inputs[S::skewed(2 * kTile)];  // [channel][step]: Δ and Δ u; then y in the place of Δ
  float b[kTile * S::kPitch], c[kTile * S::kPitch];
  float skip[S::kChannels], bias[S::kChannels];  // D and the bias of delta
  Marks marks;

  __device__ __forceinline__ float* input(int channel, int step) {
    return inputs + S::row(channel, 2 * kTile) + 2 * step;
  }
  __device__ __forceinline__ float* input_of(int channel, int step, int e) {  // element e of a vector
    return input(channel + (kContiguous == Contiguous::kChannels ? e : 0),
                 step + (kContiguous == Contiguous::kSteps ? e : 0));
  }
};

// Copies of a thread's vectors on their way, tile by tile.
template <class T, Contiguous kContiguous, class S>
class Fetcher {
  static constexpr int kCount = kVectors<kContiguous, S::kChannels, kTile>;
  using Memory = ForwardMemory<T, kContiguous, S>;
  using Tensor = Cursor<kContiguous, const T, S::kChannels, kTile>;

 public:
  __device__ __forceinline__ Fetcher(const Problem& p, const Position& at, const TokenLayouts& tokens)
      : u_(p.u, at), delta_(p.delta, at), z_(p.z, at), along_(is_c() ? tokens.c : tokens.b) {
    const Coefficients& from = of(p);
    token_ = token_vector<S, kTile>(along_, int(threadIdx.x) % (kThreads / 2));
    tokens_ = static_cast<const T*>(from.view.data) + tokens_begin(from, at, 0) + token_.channel * from.view.channel +
              token_.step * from.view.step;
  }
  // u, delta, B and C of the next tile, whose first step is `first`.
  __device__ __forceinline__ void fetch_inputs(const Problem& p, const Position& at, int64_t first, Memory& m) {
    if (first < p.length) {
      fetch(p.u, at, p.length - first, u_, m.u[first / kTile % 2]);
      fetch(p.delta, at, p.length - first, delta_, m.delta);
      if (along_ != Contiguous::kAny && first + token_.step < p.length) m.tokens.fetch(0, tokens_);
      tokens_ += kTile * of(p).view.step;
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void fetch_gate(const Problem& p, const Position& at, int64_t first, Memory& m) {
    if (p.z.data != nullptr) fetch(p.z, at, p.length - first, z_, m.z);
    cp_async_commit();
  }
  // The thread's vector of B or C, which has come, to where the walk reads it.
  __device__ __forceinline__ void store_tokens(int64_t left, const Marks* marks, Memory& m) const {
    if (along_ == Contiguous::kAny) return;
    float f[kVector] = {};
    if (token_.step < left) m.tokens.read(0, f);
    store_token_vector<S>(f, token_, marks, along_, is_c() ? m.c : m.b);
  }

 private:
  static_assert(kTile * 16 / kVector * 2 == kThreads);  // half of the threads have a vector of B, half one of C
  __device__ static __forceinline__ bool is_c() { return threadIdx.x >= kThreads / 2; }
  __device__ static __forceinline__ const Coefficients& of(const Problem& p) { return is_c() ? p.c : p.b; }
  __device__ static __forceinline__ void fetch(const View& v, const Position& at, int64_t left, Tensor& tensor,
                                               Raw<T, kCount>& to) {
    for_vectors<kContiguous, S::kChannels, kTile>([&](int k, int channel, int step) {
      if (channel < at.channels && step < left) to.fetch(k, tensor(v, k));
    });
    tensor.next(v);
  }

  Tensor u_, delta_, z_;
  const T* tokens_;
  VectorAt token_;
  Contiguous along_;
};
template <class S>
struct Fetcher<void, Contiguous::kAny, S> {  // elements one by one are read where they are wanted
  using Memory = ForwardMemory<void, Contiguous::kAny, S>;
  __device__ __forceinline__ Fetcher(const Problem&, const Position&, const TokenLayouts&) {}
  __device__ __forceinline__ void fetch_inputs(const Problem&, const Position&, int64_t, Memory&) {}
  __device__ __forceinline__ void fetch_gate(const Problem&, const Position&, int64_t, Memory&) {}
  __device__ __forceinline__ void store_tokens(int64_t, const Marks*, Memory&) const {}
};
// Δ and Δ u of the tile.
template <class T, Contiguous kContiguous, class S, bool kPacked>
__device__ __forceinline__ void open_tile(const Problem& p, const Position& at, int64_t first, int steps,
                                          ForwardMemory<T, kContiguous, S>& m) {
  constexpr int kN = kWide<kContiguous>;
  for_vectors<kContiguous, S::kChannels, kTile>([&](int k, int channel, int step) {
    float wide[kN] = {}, u[kN] = {};
    if (step < steps && (kContiguous != Contiguous::kAny || channel < at.channels)) {
      float bias[kN];
      of_channels<kContiguous>(m.bias, channel, bias);
      if constexpr (kContiguous == Contiguous::kAny) {
        u[0] = read(p.u, at.batch, at.channel + channel, first + step);
        wide[0] = read(p.delta, at.batch, at.channel + channel, first + step);
      } else {
        m.u[first / kTile % 2].read(k, u);
        m.delta.read(k, wide);
      }
#pragma unroll
      for (int e = 0; e < kN; ++e) wide[e] += bias[e];
      if (p.softplus) {
#pragma unroll
        for (int e = 0; e < kN; ++e) wide[e] = softplus(wide[e]);
      }
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        bool counts = true;
        if constexpr (kPacked) counts = m.marks.counts[step + (kContiguous == Contiguous::kSteps ? e : 0)] != 0.f;
        u[e] = counts ? wide[e] * u[e] : 0.f;
        wide[e] = counts ? wide[e] : 0.f;
      }
    }
#pragma unroll
    for (int e = 0; e < kN; ++e) *reinterpret_cast<float2*>(m.input_of(channel, step, e)) = make_float2(wide[e], u[e]);
  });
}

// What y becomes, and away with it.
template <class T, Contiguous kContiguous, class S, bool kPacked>
__device__ __forceinline__ void close_tile(const Forward& a, const Position& at, int64_t first, int steps,
                                           Cursor<kContiguous, T, S::kChannels, kTile>& to,
                                           ForwardMemory<T, kContiguous, S>& m) {
  constexpr int kN = kWide<kContiguous>;
  const Problem& p = a.of;
  for_vectors<kContiguous, S::kChannels, kTile>([&](int k, int channel, int step) {
    if (channel >= at.channels || step >= steps) return;
    float u[kN], z[kN], skip[kN], y[kN];
    of_channels<kContiguous>(m.skip, channel, skip);
    if constexpr (kContiguous == Contiguous::kAny)
      u[0] = read(p.u, at.batch, at.channel + channel, first + step);
    else
      m.u[first / kTile % 2].read(k, u);
#pragma unroll
    for (int e = 0; e < kN; ++e) y[e] = *m.input_of(channel, step, e) + skip[e] * u[e];
    if (p.z.data != nullptr) {
      if constexpr (kContiguous == Contiguous::kAny)
        z[0] = read(p.z, at.batch, at.channel + channel, first + step);
      else
        m.z.read(k, z);
#pragma unroll
      for (int e = 0; e < kN; ++e) y[e] *= z[e] * sigmoid(z[e]);
    }
    if constexpr (kPacked) {
#pragma unroll
      for (int e = 0; e < kN; ++e)
        y[e] = m.marks.counts[step + (kContiguous == Contiguous::kSteps ? e : 0)] != 0.f ? y[e] : 0.f;
    }
    if constexpr (kContiguous == Contiguous::kAny)
      write(a.y, at.batch, at.channel + channel, first + step, y[0]);
    else
      store_floats<kVector>(to(a.y, k), y);
  });
  to.next(a.y);
}

// The walk over a tile's steps, four at a time: h and y's part of it, or h alone (kStates).
template <class Memory, class S, bool kPacked, bool kConstant, bool kStates>
__device__ __forceinline__ void walk(const Problem& p, Memory& m, int steps, const float (&rate)[S::kEach][S::kPer],
                                     const float (&own_b)[S::kEach][S::kPer], const float (&own_c)[S::kEach][S::kPer],
                                     float (&h)[S::kEach][S::kPer]) {
  const float *b_at = m.b + S::place() * S::kPer, *c_at = m.c + S::place() * S::kPer;
  float* inputs_at[S::kEach];
#pragma unroll
  for (int e = 0; e < S::kEach; ++e) inputs_at[e] = m.input(S::channel(e), 0);
#pragma unroll 1
  for (int group = 0; group < steps; group += 4) {
    float part[S::kEach][4] = {}, inputs[S::kEach][8];
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) load_shared(inputs_at[e], inputs[e]);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      float b[S::kPer], c[S::kPer] = {};
      load_shared(b_at + s * S::kPitch, b);
      if constexpr (!kStates) load_shared(c_at + s * S::kPitch, c);
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
          h[e][n] = exp2_approx(inputs[e][2 * s] * rate[e][n]) * before + inputs[e][2 * s + 1] * by_b;
          if constexpr (!kStates) part[e][s] += by_c * h[e][n];
        }
      }
    }
    if constexpr (!kStates) {
      float y[S::kEach];
      sum_lanes<S>(part, y);
      __syncwarp();  // all lanes have read what this is written over
      if (S::place() < 4) {
        float* const to = inputs_at[0] + 2 * summed_step<S>();
        if constexpr (S::kEach == 2)
          *reinterpret_cast<float4*>(to) = make_float4(y[0], y[0], y[1], y[1]);
        else
          *to = y[0];
      }
    }
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) inputs_at[e] += 8;
    b_at += 4 * S::kPitch, c_at += 4 * S::kPitch;
  }
}

// Few channels a lane leave registers for twice the blocks.
template <Contiguous kContiguous, class S, bool kConstant>
constexpr int kForwardBlocks = kContiguous == Contiguous::kAny || kConstant ? 2 : 8 / S::kEach;

// kStates: the last state is all that is wanted.
template <class T, Contiguous kContiguous, class S, bool kPacked, bool kConstant, bool kStates>
__global__ void __launch_bounds__(kThreads, kForwardBlocks<kContiguous, S, kConstant>)
    forward(const Forward a, int64_t blocks, const TokenLayouts tokens) {
  extern __shared__ __align__(16) float memory[];
  using Memory = ForwardMemory<T, kContiguous, S>;
  Memory& m = *reinterpret_cast<Memory*>(memory);
  const Problem& p = a.of;
  const int64_t item = blockIdx.x, size = p.channels / p.groups, first_channel = item % blocks * S::kChannels;
  const int64_t group = item / blocks % p.groups, left = size - first_channel;
  const Position at{item / blocks / p.groups, group, group * size + first_channel,
                    int(left < S::kChannels ? left : S::kChannels)};
  float rate[S::kEach][S::kPer], h[S::kEach][S::kPer], own_b[S::kEach][S::kPer] = {}, own_c[S::kEach][S::kPer] = {};
  Fetcher<T, kContiguous, S> fetcher(p, at, tokens);
  fetcher.fetch_inputs(p, at, 0, m);
  load_elements<S>(p.a, p, at, 0, kLog2E, rate);
  load_elements<S>(p.initial, p, at, at.batch, 1.f, h);
  if constexpr (kConstant) {
    if (p.b.constant) load_elements<S>(p.b.view, p, at, 0, 1.f, own_b);
    if (p.c.constant) load_elements<S>(p.c.view, p, at, 0, 1.f, own_c);
  }
  load_channels<S>(p, at, m.skip, m.bias);
  Cursor<kContiguous, T, S::kChannels, kTile> y(a.y, at);
  int32_t current = -1;
  __syncthreads();
  for (int64_t first = 0; first < p.length; first += kTile) {
    const int steps = int(p.length - first < kTile ? p.length - first : kTile);
    fetcher.fetch_gate(p, at, first, m);
    static_assert(kTile == kGpuChunk);
    if (a.checkpoints.data != nullptr)
      store_elements<S>(a.checkpoints, p, at, at.batch, first / kGpuChunk * p.states, h);
    if constexpr (kPacked) {
      __syncthreads();  // the last tile's marks are read
      find_marks<kTile>(p.sequence, at.batch, first, p.length, current, m.marks);
      __syncthreads();
    }
    // A thread's elements of u, Δ and y are its own up to the walk, and so are B and C after it: two barriers a tile.
    const Marks* const marks = kPacked ? &m.marks : nullptr;
    cp_async_wait<1>();  // all but the gate's
    if (std::is_void_v<T> || tokens.b == Contiguous::kAny)
      load_tokens_each<S, kTile>(p.b, {tokens_begin(p.b, at, first), p.states, steps, marks}, m.b);
    if (std::is_void_v<T> || tokens.c == Contiguous::kAny)
      load_tokens_each<S, kTile>(p.c, {tokens_begin(p.c, at, first), p.states, steps, marks}, m.c);
    fetcher.store_tokens(steps, marks, m);
    open_tile<T, kContiguous, S, kPacked>(p, at, first, steps, m);
    fetcher.fetch_inputs(p, at, first + kTile, m);
    __syncthreads();
    walk<Memory, S, kPacked, kConstant, kStates>(p, m, steps, rate, own_b, own_c, h);
    __syncthreads();
    cp_async_wait<1>();  // all but the next tile's
    if constexpr (!kStates) close_tile<T, kContiguous, S, kPacked>(a, at, first, steps, y, m);
  }
  cp_async_wait<0>();
  store_elements<S>(a.last, p, at, at.batch, 0, h);
}

}  // namespace mamba::scan::gpu
