// The elementwise parts of the scan's backward: what a chunk's walk wants in shared memory, and what becomes of what it
// leaves there. u, delta, z and dy are read twice, the second time from the cache.
#pragma once

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/sm80_scan.cuh"

namespace mamba::scan::gpu {

constexpr int kSteps = int(kGpuChunk);
constexpr int kPart = 8;  // steps between states that are kept
constexpr int kParts = kSteps / kPart;

// What is read and written number by number. Where the block's chunk of each begins is worked out once for all threads:
// a place is 30 instructions of 64 bits.
enum Tensor { kOfU, kOfDelta, kOfZ, kOfDy, kOfDu, kOfDdelta, kOfDz, kOfB, kOfC, kOfTokenSums, kTensors };
struct Tensors {
  View views[kTensors];
};

// What a chunk reads number by number in vectors of 16 bits, as it lies: of the chunk until it is closed, and of the
// next one on its way. Of 32 bits it would take the place of the second block.
template <class T>
constexpr bool kAhead = !std::is_void_v<T> && !std::is_same_v<T, float>;
constexpr int kOfChunk = kOfDy + 1;
template <class T, Contiguous kContiguous, class S, bool = kAhead<T>>
struct Chunks {
  Raw<T, kVectors<kContiguous, S::kChannels, kSteps>> of[2][kOfChunk];
  Raw<T, 1> tokens;  // B's of half of the threads, C's of the others
};
template <class T, Contiguous kContiguous, class S>
struct Chunks<T, kContiguous, S, false> {};

// 16 states: 113 KB where chunks are fetched ahead, else 84 KB; two blocks a multiprocessor.
template <class T, Contiguous kContiguous, class S>
struct BackwardMemory {
  static constexpr int kBuffers = S::kStates > 64 ? 1 : 2, kElements = S::kEach * S::kPer;
  // States before a part that are in memory: with chunks fetched ahead the last part has its own in registers.
  static constexpr int kKept = kAhead<T> ? kParts - 1 : kParts;
  // Where a step begins in `fours`: four steps that are read at once have banks of their own.
  static constexpr int kFour = 4 * 32 * S::kPer + 24;
  __device__ static __forceinline__ constexpr int of_step(int step) {
    return step * 32 * S::kPer + step % 2 * 4 + step / 2 * 16;
  }

  float inputs[S::skewed(2 * kSteps)];  // [channel][step]: Δ and Δ u, then sum_n dh B and sum_n A log2 e q
  float gradients[S::skewed(kSteps)];   // [channel][step]: dy before the gate, then y
  float b[kSteps * S::kPitch], c[kSteps * S::kPitch];
  float states[kKept][kElements / 4][kThreads][4];  // before every 8th step, of each lane its own
  float fours[kWarps][2][kFour];  // [step][lane][state]: dB or dC of four steps before their sum, of four and the next
  float token_sums[kBuffers][kWarps * kPart * 2 * S::kStates];  // of each warp: [step][dB, dC]
  // Each thread's of dD, dbias and dA over the chunks: in registers the walk would miss them.
  static constexpr int kSums = 2 * kVector + kElements;
  float sums[kSums][kThreads];
  float skip[S::kChannels], bias[S::kChannels];
  // The block's channels, and where its chunk of each tensor begins: in registers the walk would miss them.
  Position at;
  int64_t begins[kTensors];
  Marks marks;
  alignas(16) Chunks<T, kContiguous, S> chunks;

  __device__ __forceinline__ float* input(int channel, int step) {
    return inputs + S::row(channel, 2 * kSteps) + 2 * step;
  }
  __device__ __forceinline__ float* gradient(int channel, int step) {
    return gradients + S::row(channel, kSteps) + step;
  }
  // A chunk's sums to those of the chunks after it.
  __device__ __forceinline__ void add_rates(float (&da)[S::kEach][S::kPer]) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      float& sum = sums[2 * kVector + i][threadIdx.x];
      sum += da[i / S::kPer][i % S::kPer], da[i / S::kPer][i % S::kPer] = 0.f;
    }
  }
  __device__ __forceinline__ void rates(float (&da)[S::kEach][S::kPer]) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) da[i / S::kPer][i % S::kPer] = sums[2 * kVector + i][threadIdx.x];
  }
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

// fn(i, address, is it inside) for each of a lane's saved states of a chunk, [state][channel]: `from` is the lane's
// first channel and state.
template <class S, class Fn>
__device__ __forceinline__ void for_saved(const float* from, const Problem& p, const Position& at, const Fn& fn) {
  const int first = S::place() * S::kPer, channels = at.channels;
#pragma unroll
  for (int n = 0; n < S::kPer; ++n) {
#pragma unroll
    for (int e = 0; e < S::kEach; ++e) {
      const bool inside = first + n < p.states && S::channel(e) < channels;
      fn(e * S::kPer + n, from + S::channel(e) - S::channel(0), inside);
    }
    from += p.channels;
  }
}
template <class S>
__device__ __forceinline__ void load_saved(const float* from, const Problem& p, const Position& at,
                                           float (&h)[S::kEach][S::kPer]) {
  for_saved<S>(from, p, at,
               [&](int i, const float* saved, bool inside) { h[i / S::kPer][i % S::kPer] = inside ? *saved : 0.f; });
}
// The same on their way to where the first part's states are kept.
template <class S, class Memory>
__device__ __forceinline__ void fetch_saved(const float* from, const Problem& p, Memory& m) {
  for_saved<S>(from, p, m.at, [&](int i, const float* saved, bool inside) {
    cp_async<4>(&m.states[0][i / 4][threadIdx.x][i % 4], saved, !inside);
  });
  cp_async_commit();
}

// Where a vector lies: one of its strides is 1.
template <Contiguous kContiguous, class T>
__device__ __forceinline__ T* vector_at(int64_t begin, const View& v, int channel, int step) {
  return static_cast<T*>(v.data) + begin +
         (kContiguous == Contiguous::kChannels ? channel + step * v.step : channel * v.channel + step);
}
// The elements of a vector as they lie, or zeros where there is no tensor.
template <Contiguous kContiguous, class T>
struct Loaded {
  Pack<T, kVector> raw{};
  __device__ __forceinline__ Loaded(int64_t begin, const View& v, int channel, int step) {
    if (v.data != nullptr) raw = load<kVector>(vector_at<kContiguous, const T>(begin, v, channel, step));
  }
  __device__ __forceinline__ void read(float (&f)[kVector]) const { unpack(raw, f); }
};
template <>
struct Loaded<Contiguous::kAny, void> {
  float value = 0.f;
  __device__ __forceinline__ Loaded(int64_t begin, const View& v, int channel, int step) {
    if (v.data != nullptr) value = gpu::read(v.data, v.type, begin + channel * v.channel + step * v.step);
  }
  __device__ __forceinline__ void read(float (&f)[1]) const { f[0] = value; }
};
template <Contiguous kContiguous, class T, int kN>
__device__ __forceinline__ void store_vector(int64_t begin, const View& v, int channel, int step,
                                             const float (&f)[kN]) {
  if constexpr (kContiguous == Contiguous::kAny)
    store_any(v.data, v.type, begin + channel * v.channel + step * v.step, f[0]);
  else
    store_floats<kN>(vector_at<kContiguous, T>(begin, v, channel, step), f);
}

// u, delta, dy and z of the thread's vector k: all are on their way before the first is used.
template <Contiguous kContiguous, class T>
struct Inputs {
  static constexpr int kN = kWide<kContiguous>;
  float u[kN], raw[kN], dy[kN], z[kN] = {};  // raw: delta with its bias

  template <class Memory>
  __device__ __forceinline__ Inputs(const Backward& a, const Memory& m, int half, int k, int channel, int step) {
    const Problem& p = a.of;
    float biases[kN];
    if constexpr (kAhead<T>) {
      const auto& chunk = m.chunks.of[half];
      of_channels<kContiguous>(m.bias, channel, biases);
      chunk[kOfDelta].read(k, raw), chunk[kOfDy].read(k, dy), chunk[kOfU].read(k, u);
      if (p.z.data != nullptr) chunk[kOfZ].read(k, z);
    } else {
      const Loaded<kContiguous, T> of_delta(m.begins[kOfDelta], p.delta, channel, step),
          of_z(m.begins[kOfZ], p.z, channel, step), of_dy(m.begins[kOfDy], a.dy, channel, step),
          of_u(m.begins[kOfU], p.u, channel, step);
      of_channels<kContiguous>(m.bias, channel, biases);
      of_delta.read(raw), of_z.read(z), of_dy.read(dy), of_u.read(u);
    }
#pragma unroll
    for (int e = 0; e < kN; ++e) raw[e] += biases[e];
  }
};

// A chunk on its way: `before` 1 is the one before that of m.begins.
template <class T, Contiguous kContiguous, class S>
__device__ __forceinline__ void fetch_chunk(const Backward& a, const TokenLayouts& tokens, int half, int steps,
                                            int before, BackwardMemory<T, kContiguous, S>& m) {
  const Problem& p = a.of;
  const View* const views[kOfChunk] = {&p.u, &p.delta, &p.z, &a.dy};
  for_vectors<kContiguous, S::kChannels, kSteps>([&](int k, int channel, int step) {
    if (channel >= m.at.channels || step >= steps) return;
#pragma unroll
    for (int i = 0; i < kOfChunk; ++i) {
      const View& v = *views[i];
      if (v.data == nullptr) continue;
      m.chunks.of[half][i].fetch(
          k, vector_at<kContiguous, const T>(m.begins[i] - before * kSteps * v.step, v, channel, step));
    }
  });
  const bool is_c = threadIdx.x >= kThreads / 2;
  const Contiguous contiguous = is_c ? tokens.c : tokens.b;
  const View& v = is_c ? p.c.view : p.b.view;
  const VectorAt at = token_vector<S, kSteps>(contiguous, int(threadIdx.x) % (kThreads / 2));
  if (contiguous != Contiguous::kAny && at.step < steps)
    m.chunks.tokens.fetch(0, static_cast<const T*>(v.data) + m.begins[is_c ? kOfC : kOfB] + at.channel * v.channel +
                                 (at.step - before * kSteps) * v.step);
  cp_async_commit();
}
// B and C of a chunk that has come, to where the walk reads them.
template <class T, Contiguous kContiguous, class S>
__device__ __forceinline__ void store_tokens(const TokenLayouts& tokens, int steps, const Marks* marks,
                                             BackwardMemory<T, kContiguous, S>& m) {
  static_assert(kSteps * S::kStates / kVector * 2 == kThreads);  // each thread a vector
  const bool is_c = threadIdx.x >= kThreads / 2;
  const Contiguous contiguous = is_c ? tokens.c : tokens.b;
  if (contiguous == Contiguous::kAny) return;
  const VectorAt at = token_vector<S, kSteps>(contiguous, int(threadIdx.x) % (kThreads / 2));
  float f[kVector] = {};
  if (at.step < steps) m.chunks.tokens.read(0, f);
  store_token_vector<S>(f, at, marks, contiguous, is_c ? m.c : m.b);
}

template <class T, Contiguous kContiguous, class S, bool kPacked>
__device__ __forceinline__ void open_chunk(const Backward& a, int half, int steps,
                                           BackwardMemory<T, kContiguous, S>& m) {
  constexpr int kN = kWide<kContiguous>;
  const Problem& p = a.of;
  for_vectors<kContiguous, S::kChannels, kSteps>([&](int k, int channel, int step) {
    float wide[kN] = {}, by_u[kN] = {}, dy[kN] = {};
    if (channel < m.at.channels && step < steps) {
      const Inputs<kContiguous, T> in(a, m, half, k, channel, step);
#pragma unroll
      for (int e = 0; e < kN; ++e) wide[e] = in.raw[e], dy[e] = in.dy[e];
      if (p.softplus) {
#pragma unroll
        for (int e = 0; e < kN; ++e) wide[e] = softplus(wide[e]);
      }
      if (p.z.data != nullptr) {
#pragma unroll
        for (int e = 0; e < kN; ++e) dy[e] *= in.z[e] * sigmoid(in.z[e]);
      }
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        bool counts = true;
        if constexpr (kPacked) counts = m.marks.counts[step + (kContiguous == Contiguous::kSteps ? e : 0)] != 0.f;
        by_u[e] = counts ? wide[e] * in.u[e] : 0.f, wide[e] = counts ? wide[e] : 0.f, dy[e] = counts ? dy[e] : 0.f;
      }
    }
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      const int c = channel + (kContiguous == Contiguous::kChannels ? e : 0),
                s = step + (kContiguous == Contiguous::kSteps ? e : 0);
      *reinterpret_cast<float2*>(m.input(c, s)) = make_float2(wide[e], by_u[e]);
      *m.gradient(c, s) = dy[e];
    }
  });
}

// A thread's sums of dD and dbias: of the 8 channels of its vectors, or of each vector's one channel.
template <Contiguous kContiguous, class S>
constexpr int kSums = kContiguous == Contiguous::kChannels ? kVector
                      : kContiguous == Contiguous::kSteps  ? kVectors<kContiguous, S::kChannels, kSteps>
                                                           : 1;

// Sums over time are of chunks, then over chunks: float32 loses too much in one long sum.
template <class T, Contiguous kContiguous, class S, bool kPacked>
__device__ __forceinline__ void close_chunk(const Backward& a, int half, int steps,
                                            BackwardMemory<T, kContiguous, S>& m) {
  constexpr int kN = kWide<kContiguous>, kOwn = kSums<kContiguous, S>;
  const Problem& p = a.of;
  float by_d[kOwn] = {}, by_bias[kOwn] = {};
  for_vectors<kContiguous, S::kChannels, kSteps, kContiguous == Contiguous::kChannels>(
      [&](int k, int channel, int step) {
        if (channel >= m.at.channels || step >= steps) return;
        const Inputs<kContiguous, T> in(a, m, half, k, channel, step);
        float skip[kN], wide[kN], slope[kN], gradient[kN], du[kN], ddelta[kN], dz[kN];
        of_channels<kContiguous>(m.skip, channel, skip);
#pragma unroll
        for (int e = 0; e < kN; ++e) wide[e] = in.raw[e], slope[e] = 1.f, gradient[e] = in.dy[e];
        if (p.softplus) {
#pragma unroll
          for (int e = 0; e < kN; ++e) wide[e] = softplus(in.raw[e], slope[e]);
        }
        if (p.z.data != nullptr) {
#pragma unroll
          for (int e = 0; e < kN; ++e) {
            const Gate gate = gate_of(in.z[e]);
            gradient[e] *= gate.value, dz[e] = in.dy[e] * gate.slope;
          }
        }
#pragma unroll
        for (int e = 0; e < kN; ++e) {
          const int c = channel + (kContiguous == Contiguous::kChannels ? e : 0),
                    s = step + (kContiguous == Contiguous::kSteps ? e : 0);
          bool counts = true;
          if constexpr (kPacked) counts = m.marks.counts[s] != 0.f;
          const float2 by = *reinterpret_cast<const float2*>(m.input(c, s));
          dz[e] = counts ? dz[e] * (*m.gradient(c, s) + skip[e] * in.u[e]) : 0.f;
          ddelta[e] = counts ? (in.u[e] * by.x + by.y * kLn2) * slope[e] : 0.f;
          du[e] = counts ? skip[e] * gradient[e] + wide[e] * by.x : 0.f;
          const int own = kContiguous == Contiguous::kChannels ? e : kContiguous == Contiguous::kSteps ? k : 0;
          by_d[own] += counts ? gradient[e] * in.u[e] : 0.f, by_bias[own] += ddelta[e];
        }
        store_vector<kContiguous, T>(m.begins[kOfDu], a.du, channel, step, du);
        store_vector<kContiguous, T>(m.begins[kOfDdelta], a.ddelta, channel, step, ddelta);
        if (p.z.data != nullptr) store_vector<kContiguous, T>(m.begins[kOfDz], a.dz, channel, step, dz);
      });
#pragma unroll
  for (int e = 0; e < kOwn; ++e) m.sums[e][threadIdx.x] += by_d[e], m.sums[kVector + e][threadIdx.x] += by_bias[e];
}

// The threads' sums of each channel, in order, to rows `row` and the next of the block's.
template <class T, Contiguous kContiguous, class S>
__device__ __forceinline__ void store_channel_sums(const Position& at, const BackwardMemory<T, kContiguous, S>& m,
                                                   const View& to, int64_t row) {
  __syncthreads();
  for (int i = int(threadIdx.x); i < 2 * S::kChannels; i += kThreads) {
    const int channel = i % S::kChannels, which = i / S::kChannels;
    if (channel >= at.channels) continue;
    float sum = 0.f;
    const auto add = [&](int thread, int e) { sum += m.sums[which * kVector + e][thread]; };
    if constexpr (kContiguous == Contiguous::kChannels) {
      for (int t = channel / kVector; t < kThreads; t += S::kChannels / kVector) add(t, channel % kVector);
    } else if constexpr (kContiguous == Contiguous::kSteps) {  // vector_at's rows
      const int first = (channel % 8 * (S::kChannels / 8) + channel / 8) * (kSteps / kVector);
      for (int v = first; v < first + kSteps / kVector; ++v) add(v % kThreads, v / kThreads);
    } else {
      for (int t = channel; t < kThreads; t += S::kChannels) add(t, 0);
    }
    write(to, at.batch, at.channel + channel, row + which, sum);
  }
}

}  // namespace mamba::scan::gpu
