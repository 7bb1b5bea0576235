// What the convolution's kernels share: a channel's filter, and which taps count.
#pragma once

#include <type_traits>

#include "kernels/mamba/conv.h"
#include "kernels/mamba/cuda/view.cuh"

namespace mamba::conv::gpu {

using namespace mamba::gpu;
using kernels::gpu::unpack;

constexpr int kThreads = 128;
constexpr int kVector = 8;  // elements of a thread that lie beside each other: 16 or 32 bytes

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

// The same with a filter scaled by -log2 e, of whose sum `scaled` is: -ln 2 times the gradient. Products of scaled
// weights and such gradients are those of plain ones, and nobody multiplies by log2 e for the power of two.
constexpr float kScale = -kLog2E, kUnscale = -kLn2;
__device__ __forceinline__ float through_scaled_silu(float dy, float scaled) {
  const float s = rcp_approx(1.f + exp2_approx(scaled));
  return dy * s * fmaf(scaled, fmaf(s, -kLn2 * kLn2, kLn2 * kLn2), kUnscale);
}

// kVector elements that lie beside each other; p is at a whole vector.
template <class T>
__device__ __forceinline__ void load_vector(const View& v, int64_t at, float (&f)[kVector]) {
  load_floats<kVector>(static_cast<const T*>(v.data) + at, f);
}
template <class T>
__device__ __forceinline__ void store_vector(const View& v, int64_t at, const float (&f)[kVector]) {
  store_floats<kVector>(static_cast<T*>(v.data) + at, f);
}

// kN elements as they lie, 8 bytes of them or more: registers are dear until the elements are wanted.
template <class T, int kN>
struct Loaded {
  uint32_t w[kN * sizeof(T) / 4];
};
template <int kN, class T>
__device__ __forceinline__ Loaded<T, kN> load_few(const T* from) {
  Loaded<T, kN> out;
  if constexpr (kN * sizeof(T) == 8) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    out.w[0] = two.x, out.w[1] = two.y;
  } else {
    const Pack<T, kN> pack = load<kN>(from);
#pragma unroll
    for (int i = 0; i < int(kN * sizeof(T) / 4); ++i) out.w[i] = pack.w[i];
  }
  return out;
}
template <class T, int kN>
__device__ __forceinline__ void unpack(const Loaded<T, kN>& v, float (&f)[kN]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int c = 0; c < kN; ++c) f[c] = __uint_as_float(v.w[c]);
  } else {
#pragma unroll
    for (int c = 0; c < kN; c += 2) {
      const float2 two = unpack_pair<T>(v.w[c / 2]);
      f[c] = two.x, f[c + 1] = two.y;
    }
  }
}
template <int kN, class T>
__device__ __forceinline__ void store_few(T* to, const float (&f)[kN]) {
  if constexpr (kN * sizeof(T) == 8)
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_pair<T>(f[0], f[1]), pack_pair<T>(f[2], f[3]));
  else
    store_floats<kN>(to, f);
}

}  // namespace mamba::conv::gpu
