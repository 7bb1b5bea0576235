// What forward and backward of the scan share on a GPU. A block of kThreads has some channels of one group of one batch
// entry and goes through the time tile by tile; the states of a channel are in registers of kLanes neighbouring lanes.
//   elementwise: tiles of u, Δ and the like are read and written as they lie, 16 bytes a thread, and pass through
//     shared memory as float32, [channel][step]: any layout costs the same
//   walk: lanes of a channel go through the steps
#pragma once

#include <type_traits>

#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/mamba/cuda/view.cuh"
#include "kernels/mamba/scan.h"

namespace mamba::scan::gpu {

using namespace mamba::gpu;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kVector = 8;  // elements of a thread's access

// How elements lie that are worked on one by one: of any type and stride, or all of T in whole vectors along channels
// or along steps.
enum class Contiguous { kAny, kChannels, kSteps };

// Lanes of a channel, states of a lane, channels of a lane.
template <int kLanesOf, int kPerLane, int kChannelsPerLane>
struct Shape {
  static constexpr int kLanes = kLanesOf, kPer = kPerLane, kEach = kChannelsPerLane;
  static constexpr int kStates = kLanes * kPer, kChannels = kWarps * (32 / kLanes) * kEach;
  // 16 bytes more than a row of states: steps that are written side by side take other banks.
  static constexpr int kPitch = kStates + 4;
  // Which of its channel's lanes a lane is, and which of the warp's channels (of each kEach) it has. Shared memory
  // serves 16 lanes that read 16 bytes at once only where neighbours (lanes 1 apart, or 2) read the same: states
  // alternate with bit 1 of the lane, which share what they read of a channel, and channels with bit 0, which share B
  // and C.
  __device__ static __forceinline__ int place() {
    const int t = int(threadIdx.x);
    int at = (t >> 1 & 1) | (t >> 3 & 2);
    if (kLanes > 4) at |= t >> 1 & 4;
    if (kLanes > 8) at |= t << 1 & 8;
    if (kLanes > 16) at |= t << 4 & 16;
    return at;
  }
  __device__ static __forceinline__ int slot() {
    const int t = int(threadIdx.x);
    return kLanes == 32 ? 0 : (t & 1) | (kLanes < 16 ? t >> 1 & 2 : 0) | (kLanes < 8 ? t >> 1 & 4 : 0);
  }
  __device__ static __forceinline__ constexpr int lane_of(int slot, int place) {
    int lane = (place & 1) << 1 | (place & 2) << 3;
    lane |= kLanes > 4 ? (place & 4) << 1 : (slot & 4) << 1;
    lane |= kLanes > 8 ? (place & 8) >> 1 : (slot & 2) << 1;
    return lane | (kLanes > 16 ? (place & 16) >> 4 : slot & 1);
  }
  // Channel e of this lane: of two, lanes 16 apart have the first and the second in turn (sum_lanes). Those that a warp
  // reads together are a multiple of kApart apart, and rows are skewed by 16 bytes every kApart channels: neither the
  // walk's reads nor the tile's writes wait for banks.
  static constexpr int kApart = kWarps * kEach;
  __device__ static __forceinline__ int channel(int e) {
    const int warp = int(threadIdx.x) / 32;
    return slot() * kApart + warp * kEach + (kEach == 2 ? e ^ int(threadIdx.x >> 4 & 1) : e);
  }
  static constexpr int skewed(int row) { return kChannels * row + 4 * ((kChannels + kApart - 1) / kApart); }
  __device__ static __forceinline__ int row(int channel, int length) {
    return channel * length + 4 * (channel / kApart);
  }
};

// The block's place.
struct Position {
  int64_t batch, group, channel;  // the first
  int channels;                   // that there are, up to the block's
};

// Vector k of the thread in a tile of kChannels x kSteps: element e of it is channel + e, or step + e.
struct VectorAt {
  int channel, step;
};
template <Contiguous kContiguous>
constexpr int kWide = kContiguous == Contiguous::kAny ? 1 : kVector;
template <Contiguous kContiguous, int kChannels, int kSteps>
constexpr int kVectors = kChannels* kSteps / kWide<kContiguous> / kThreads;
template <Contiguous kContiguous, int kChannels, int kSteps>
__device__ __forceinline__ VectorAt vector_at(int k) {
  static_assert(kVectors<kContiguous, kChannels, kSteps> * kWide<kContiguous> * kThreads == kChannels * kSteps);
  const int i = k * kThreads + int(threadIdx.x);
  if constexpr (kContiguous == Contiguous::kChannels) {
    return {i % (kChannels / kVector) * kVector, i / (kChannels / kVector)};
  } else if constexpr (kContiguous == Contiguous::kSteps) {
    const int row = i / (kSteps / kVector);
    return {row % (kChannels / 8) * 8 + row / (kChannels / 8), i % (kSteps / kVector) * kVector};
  } else {
    return {i % kChannels, i / kChannels};
  }
}
// fn(k, channel, step) for all of them. kInTurn: one after the other, where those of all would take too many registers.
template <Contiguous kContiguous, int kChannels, int kSteps, bool kInTurn = false, class Fn>
__device__ __forceinline__ void for_vectors(const Fn& fn) {
  constexpr int kCount = kVectors<kContiguous, kChannels, kSteps>;
#pragma unroll(kInTurn || kContiguous == Contiguous::kAny ? 1 : kCount)
  for (int k = 0; k < kCount; ++k) {
    const VectorAt v = vector_at<kContiguous, kChannels, kSteps>(k);
    fn(k, v.channel, v.step);
  }
}

// Where the thread's vectors of a tensor's tiles lie. A place is 30 instructions of 64 bits, a step to the next two.
template <Contiguous kContiguous, class T, int kChannels, int kSteps>
class Cursor {
 public:
  __device__ __forceinline__ Cursor(const View& v, const Position& at) {
    const VectorAt first = vector_at<kContiguous, kChannels, kSteps>(0);
    if (v.data != nullptr) at_ = static_cast<T*>(v.data) + place(v, at.batch, at.channel + first.channel, first.step);
  }
  __device__ __forceinline__ T* operator()(const View& v, int k) const {
    if constexpr (kContiguous == Contiguous::kChannels)
      return at_ + k * (kThreads / (kChannels / kVector)) * v.step;
    else
      return at_ + k * (kThreads / (kSteps / kVector) / (kChannels / 8)) * v.channel;
  }
  __device__ __forceinline__ void next(const View& v) { at_ += kSteps * v.step; }  // tile

 private:
  T* at_ = nullptr;
};

template <int kChannels, int kSteps>
struct Cursor<Contiguous::kAny, void, kChannels, kSteps> {
  __device__ __forceinline__ Cursor(const View&, const Position&) {}
  __device__ __forceinline__ void next(const View&) {}
};

// Vectors of the next tile on their way to shared memory while this one is worked on. A thread copies what it will read
// itself, as it lies: no barrier, no conversion and no register stands in between.
template <class T, int kCount>
struct Raw {
  static constexpr int kPieces = kVector * int(sizeof(T)) / 16;
  uint4 pieces[kCount][kPieces][kThreads];

  __device__ __forceinline__ void fetch(int k, const T* from) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) cp_async(&pieces[k][i][threadIdx.x], from + i * kPerVector<T>, false);
  }
  __device__ __forceinline__ void read(int k, float (&f)[kVector]) const {
    Pack<T, kVector> v;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 piece = pieces[k][i][threadIdx.x];
      v.w[4 * i] = piece.x, v.w[4 * i + 1] = piece.y, v.w[4 * i + 2] = piece.z, v.w[4 * i + 3] = piece.w;
    }
    unpack(v, f);
  }
};
template <int kCount>
struct Raw<void, kCount> {};  // elements one by one are read where they are wanted

// ---- where sequences begin
struct Marks {
  float enters[32], counts[32];  // 0: the state starts from 0 here; 0: padding. Else 1
};

// Of steps [first, first + kSteps); `current` is the sequence before them, in the first warp. The others wait at the
// barrier that follows.
template <int kSteps>
__device__ __forceinline__ void find_marks(const Sequences& s, int64_t batch, int64_t first, int64_t length,
                                           int32_t& current, Marks& marks) {
  if (threadIdx.x >= 32) return;
  const int lane = int(threadIdx.x);
#pragma unroll
  for (int part = 0; part < kSteps; part += 32) {
    const int64_t t = first + part + lane;
    const int32_t own = t >= length ? -1 : s.data != nullptr ? sequence_at(s, batch, t) : 0;
    const unsigned real = __ballot_sync(kAllLanes, own >= 0), before = real & ((1u << lane) - 1u);
    const int32_t from = __shfl_sync(kAllLanes, own, before != 0 ? 31 - __clz(int(before)) : 0);
    const int32_t last = before != 0 ? from : current;
    marks.counts[part + lane] = own >= 0 ? 1.f : 0.f;
    marks.enters[part + lane] = own >= 0 && last >= 0 && own != last ? 0.f : 1.f;
    const int32_t newest = __shfl_sync(kAllLanes, own, real != 0 ? 31 - __clz(int(real)) : 0);
    current = real != 0 ? newest : current;
  }
}
// The sequence before step `first`, which a walk that begins there has not seen.
__device__ __forceinline__ int32_t sequence_before(const Sequences& s, int64_t batch, int64_t first) {
  int32_t current = -1;
  for (int64_t t = first - 1; s.data != nullptr && t >= 0 && current < 0; --t) current = sequence_at(s, batch, t);
  return current;
}

// ---- B and C of a tile, [step][kPitch]; zeros beyond the states and steps, and for padding.
struct Tokens {
  int64_t begin;       // where the tile's first step is, of state 0
  int states, steps;   // that there are
  const Marks* marks;  // null: all count
};
__device__ __forceinline__ int64_t tokens_begin(const Coefficients& from, const Position& at, int64_t first) {
  return at.group * from.group + at.batch * from.view.batch + first * from.view.step;
}
template <class S, int kSteps>
__device__ __forceinline__ void load_tokens_each(const Coefficients& from, const Tokens& t, float* tile) {
  if (from.constant) return;
  const View& v = from.view;
  for (int i = int(threadIdx.x); i < kSteps * S::kStates; i += kThreads) {
    const int s = v.step == 1 ? i % kSteps : i / S::kStates, n = v.step == 1 ? i / kSteps : i % S::kStates;
    const bool inside = n < t.states && s < t.steps && (t.marks == nullptr || t.marks->counts[s] != 0.f);
    tile[s * S::kPitch + n] = inside ? read(v.data, v.type, t.begin + n * v.channel + s * v.step) : 0.f;
  }
}
// 16 states of T in whole vectors, along steps or along states: each number by itself would cost a tenth of the
// forward's instructions. Vector i of a tile:
template <class S, int kSteps>
__device__ __forceinline__ VectorAt token_vector(Contiguous contiguous, int i) {  // its state, its step
  if (contiguous == Contiguous::kSteps) return {i / (kSteps / kVector), i % (kSteps / kVector) * kVector};
  return {i % (S::kStates / kVector) * kVector, i / (S::kStates / kVector)};
}
template <class S>
__device__ __forceinline__ void store_token_vector(const float (&f)[kVector], VectorAt v, const Marks* marks,
                                                   Contiguous contiguous, float* tile) {
  const bool steps = contiguous == Contiguous::kSteps;
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const int step = steps ? v.step + e : v.step, state = steps ? v.channel : v.channel + e;
    tile[step * S::kPitch + state] = marks == nullptr || marks->counts[step] != 0.f ? f[e] : 0.f;
  }
}
// How B or C lie; kAny: take them one by one.
struct TokenLayouts {
  Contiguous b, c;
};
template <class T, class S, int kSteps>
__device__ __forceinline__ void load_tokens(const Coefficients& from, const Tokens& t, Contiguous contiguous,
                                            float* tile) {
  if constexpr (!std::is_void_v<T>) {
    if (contiguous != Contiguous::kAny) {
#pragma unroll
      for (int k = 0; k < (kSteps * S::kStates / kVector + kThreads - 1) / kThreads; ++k) {
        const int i = k * kThreads + int(threadIdx.x);
        const VectorAt v = token_vector<S, kSteps>(contiguous, i);
        if (i >= kSteps * S::kStates / kVector) break;
        float f[kVector] = {};
        if (v.step < t.steps)
          load_floats<kVector>(
              static_cast<const T*>(from.view.data) + t.begin + v.channel * from.view.channel + v.step * from.view.step,
              f);
        store_token_vector<S>(f, v, t.marks, contiguous, tile);
      }
      return;
    }
  }
  load_tokens_each<S, kSteps>(from, t, tile);
}

// ---- what a block has of its channels: D and the bias of delta
template <class S>
__device__ __forceinline__ void load_channels(const Problem& p, const Position& at, float* skip, float* bias) {
  for (int c = int(threadIdx.x); c < S::kChannels; c += kThreads) {
    skip[c] = c < at.channels ? read_or_zero(p.d, at.channel + c) : 0.f;
    bias[c] = c < at.channels ? read_or_zero(p.delta_bias, at.channel + c) : 0.f;
  }
}

// ---- what a lane has of its channels
template <class S>
__device__ __forceinline__ void load_elements(const View& v, const Problem& p, const Position& at, int64_t batch,
                                              float scale, float (&to)[S::kEach][S::kPer]) {
  const int first = S::place() * S::kPer;
#pragma unroll
  for (int e = 0; e < S::kEach; ++e) {
#pragma unroll
    for (int n = 0; n < S::kPer; ++n) {
      const bool inside = v.data != nullptr && first + n < p.states && S::channel(e) < at.channels;
      to[e][n] = inside ? scale * read(v, batch, at.channel + S::channel(e), first + n) : 0.f;
    }
  }
}
template <class S>
__device__ __forceinline__ void store_elements(const View& v, const Problem& p, const Position& at, int64_t batch,
                                               int64_t first_row, const float (&from)[S::kEach][S::kPer]) {
  const int first = S::place() * S::kPer;
#pragma unroll
  for (int e = 0; e < S::kEach; ++e) {
    if (S::channel(e) >= at.channels) continue;
#pragma unroll
    for (int n = 0; n < S::kPer; ++n) {
      if (first + n < p.states) write(v, batch, at.channel + S::channel(e), first_row + first + n, from[e][n]);
    }
  }
}

// kCount floats of shared memory at a multiple of 16 bytes.
template <int kCount>
__device__ __forceinline__ void load_shared(const float* from, float (&f)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(from + i);
    f[i] = v.x, f[i + 1] = v.y, f[i + 2] = v.z, f[i + 3] = v.w;
  }
}

// Numbers of the channels of a vector: of one channel, or of each element's.
template <Contiguous kContiguous, int kN>
__device__ __forceinline__ void of_channels(const float* elements, int channel, float (&f)[kN]) {
  if constexpr (kContiguous == Contiguous::kChannels) {
    load_shared(elements + channel, f);
  } else {
#pragma unroll
    for (int e = 0; e < kN; ++e) f[e] = elements[channel];
  }
}

// Sums over the lanes of a channel, of four steps: a lane whose place is below 4 gets those of its first channel, of
// step summed_step(0), or of that and the next one. Of two channels the first exchange sends what the other lane has as
// its first: nothing is selected.
template <class S>
__device__ __forceinline__ int summed_step() {
  return S::kEach == 2 ? int(threadIdx.x & 2) : int(threadIdx.x & 2) | int(threadIdx.x >> 4 & 1);
}
template <class S>
__device__ __forceinline__ void sum_lanes(const float (&v)[S::kEach][4], float (&sums)[S::kEach]) {
  static_assert(S::kEach <= 2 && S::kLanes >= 4);
  const bool odd = (threadIdx.x & 16) != 0, high = (threadIdx.x & 2) != 0;
  if constexpr (S::kEach == 2) {
    float own[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) own[s] = v[0][s] + __shfl_xor_sync(kAllLanes, v[1][s], 16);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      sums[i] = (high ? own[i + 2] : own[i]) + __shfl_xor_sync(kAllLanes, high ? own[i] : own[i + 2], 2);
  } else {
    const float low = (odd ? v[0][1] : v[0][0]) + __shfl_xor_sync(kAllLanes, odd ? v[0][0] : v[0][1], 16);
    const float top = (odd ? v[0][3] : v[0][2]) + __shfl_xor_sync(kAllLanes, odd ? v[0][2] : v[0][3], 16);
    sums[0] = (high ? top : low) + __shfl_xor_sync(kAllLanes, high ? low : top, 2);
  }
#pragma unroll
  for (int lanes = 4, o = 8; lanes < S::kLanes; lanes *= 2, o = o == 8 ? 4 : 1) {
#pragma unroll
    for (int i = 0; i < S::kEach; ++i) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], o);
  }
}

}  // namespace mamba::scan::gpu
