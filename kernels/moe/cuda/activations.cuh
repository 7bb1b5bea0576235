// Activations on a GPU: value(g, u), and both slopes times d. Those without a gate leave u alone.
#pragma once

#include "kernels/common/gpu/activations.cuh"
#include "kernels/moe/moe.h"

namespace moe::gpu {

using kernels::gpu::Both;

struct Slopes {
  float value, dg, du;
};

struct Relu {
  template <bool>
  static __device__ __forceinline__ float value(float x) {
    return x < 0.f ? 0.f : x;  // NaN stays
  }
  template <bool>
  static __device__ __forceinline__ Both both(float x) {
    return {x < 0.f ? 0.f : x, x > 0.f ? 1.f : x != x ? x : 0.f};
  }
};

struct Limits {
  float alpha, limit;
};

template <class Inner>
struct Gated {
  static constexpr bool kGate = true;
  template <bool kCoarse>
  static __device__ __forceinline__ float value(const Limits&, float g, float u) {
    return Inner::template value<kCoarse>(g) * u;
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Slopes slopes(const Limits&, float g, float u, float d) {
    const Both b = Inner::template both<kCoarse>(g);
    return {b.value * u, d * u * b.slope, d * b.value};
  }
};
template <class Inner>
struct Plain {
  static constexpr bool kGate = false;
  template <bool kCoarse>
  static __device__ __forceinline__ float value(const Limits&, float g, float) {
    return Inner::template value<kCoarse>(g);
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Slopes slopes(const Limits&, float g, float, float d) {
    const Both b = Inner::template both<kCoarse>(g);
    return {b.value, d * b.slope, 0.f};
  }
};

// g' sigmoid(alpha g') (u' + 1), or silu(g') u', of clamped elements.
template <bool kOai>
struct Clamped {
  static constexpr bool kGate = true;
  template <bool kCoarse>
  static __device__ __forceinline__ float value(const Limits& l, float g, float u) {
    return slopes<kCoarse>(l, g, u, 0.f).value;
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Slopes slopes(const Limits& l, float g, float u, float d) {
    const float c = g > l.limit ? l.limit : g, v = u > l.limit ? l.limit : u < -l.limit ? -l.limit : u;
    const float alpha = kOai ? l.alpha : 1.f, w = kOai ? v + 1.f : v;
    const float s = kernels::gpu::sigmoid<kCoarse>(alpha * c);
    return {c * s * w, g > l.limit ? 0.f : d * w * (s + alpha * c * s * (1.f - s)),
            fabsf(u) > l.limit ? 0.f : d * c * s};
  }
};

// fn.operator()<Formula>(), on the host or, where fn is the device's, there.
#pragma nv_exec_check_disable
template <class Fn>
__host__ __device__ __forceinline__ void with_act(Act act, const Fn& fn) {
  using namespace kernels::gpu;
  switch (act) {
    case Act::kSwiGlu:
      return fn.template operator()<Gated<Silu>>();
    case Act::kGeGlu:
      return fn.template operator()<Gated<Gelu>>();
    case Act::kGeGluTanh:
      return fn.template operator()<Gated<GeluTanh>>();
    case Act::kReGlu:
      return fn.template operator()<Gated<Relu>>();
    case Act::kSwiGluOai:
      return fn.template operator()<Clamped<true>>();
    case Act::kSwiGluClamped:
      return fn.template operator()<Clamped<false>>();
    case Act::kRelu2:
      return fn.template operator()<Plain<ReluSquared>>();
    case Act::kSilu:
      return fn.template operator()<Plain<Silu>>();
    case Act::kGelu:
      return fn.template operator()<Plain<Gelu>>();
    case Act::kGeluTanh:
      return fn.template operator()<Plain<GeluTanh>>();
  }
}

struct ValueOf {
  const Limits& limits;
  float g, u;
  float& value;
  template <class Formula>
  __device__ __forceinline__ void operator()() const {
    value = Formula::template value<true>(limits, g, u);
  }
};
// Chosen while the kernel runs, of 16-bit elements.
__device__ __forceinline__ float value_of(Act act, const Limits& limits, float g, float u) {
  float value = 0.f;
  with_act(act, ValueOf{limits, g, u, value});
  return value;
}

}  // namespace moe::gpu
