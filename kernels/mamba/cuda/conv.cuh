// What the convolution's kernels share: a channel's filter, and which taps count.
#pragma once

#include <type_traits>

#include "kernels/mamba/conv.h"
#include "kernels/mamba/cuda/view.cuh"

namespace mamba::conv::gpu {

using namespace mamba::gpu;

constexpr int kThreads = 128;
constexpr int kVector = 8;  // numbers of a thread that lie beside each other: 16 or 32 bytes

// kTaps is width rounded up to 4 or 8. Taps from width on are skipped, not multiplied by 0: infinity stays where it is.
template <int kTaps>
struct Filter {
  float w[kTaps], bias;
};
template <int kTaps>
__device__ __forceinline__ Filter<kTaps> load_filter(const Problem& p, int64_t channel) {
  Filter<kTaps> f;
#pragma unroll
  for (int j = 0; j < kTaps; ++j) f.w[j] = j < p.width ? read(p.weight, 0, channel, p.width - 1 - j) : 0.f;
  f.bias = read_or_zero(p.bias, channel);
  return f;
}

// The column of the initial state at time t < 0, or 0.
__device__ __forceinline__ float before(const Problem& p, int64_t batch, int64_t channel, int64_t t) {
  const int64_t column = t + p.width - 1;
  return p.initial.data != nullptr && column >= 0 ? read(p.initial, batch, channel, column) : 0.f;
}
// x at any time below the length.
__device__ __forceinline__ float input(const Problem& p, int64_t batch, int64_t channel, int64_t t) {
  return t >= 0 ? read(p.x, batch, channel, t) : before(p, batch, channel, t);
}
// The initial state belongs to the first token's sequence.
__device__ __forceinline__ int32_t sequence_or_first(const Problem& p, int64_t batch, int64_t t) {
  return sequence_at(p.sequence, batch, t > 0 ? t : 0);
}

// The gradient of p = b + sum w x, whose value is given, from that of y.
__device__ __forceinline__ float through_silu(float dy, float value) {
  const float s = sigmoid(value);
  return dy * s * (1.f + value * (1.f - s));
}

// kVector numbers that lie beside each other; p is at a whole vector.
template <class T>
__device__ __forceinline__ void load_vector(const View& v, int64_t at, float (&f)[kVector]) {
  load_floats<kVector>(static_cast<const T*>(v.data) + at, f);
}
template <class T>
__device__ __forceinline__ void store_vector(const View& v, int64_t at, const float (&f)[kVector]) {
  store_floats<kVector>(static_cast<T*>(v.data) + at, f);
}

}  // namespace mamba::conv::gpu
