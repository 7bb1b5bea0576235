// Activation functions on a GPU: activation.h's formulas, and act(gate) * up for every package that has it.
// kCoarse where the result becomes 16 bits: the chip's fast exponential (about 1e-6 relative) and an integral of the
// normal density to 7.5e-8 (Abramowitz and Stegun 7.1.26).
#pragma once

#include "kernels/common/gpu/device.cuh"

namespace kernels::gpu {

template <bool kCoarse>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (kCoarse) return __expf(x);
  return expf(x);
}
template <bool kCoarse>
__device__ __forceinline__ float sigmoid(float x) {
  return rcp_approx(1.f + exponential<kCoarse>(-x));
}

struct Both {
  float value, slope;
};
__device__ __forceinline__ Both gated(float x, float s, float du) {  // of x * sigmoid(u(x))
  return {x * s, s + x * s * (1.f - s) * du};
}

struct Silu {
  template <bool kCoarse>
  static __device__ __forceinline__ float value(float x) {
    return x * sigmoid<kCoarse>(x);
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Both both(float x) {
    return gated(x, sigmoid<kCoarse>(x), 1.f);
  }
};

struct Gelu {
  // Half of erfc(|x| / sqrt 2), with e^(-x^2 / 2), which the density needs too. far: |x| kept from infinity.
  static __device__ __forceinline__ float tail(float x, float far, float* exp_out) {
    const float t = rcp_approx(1.f + 0.23164189f * far);  // p / sqrt 2
    float p = 0.5f * 1.061405429f;
    p = p * t - 0.5f * 1.453152027f;
    p = p * t + 0.5f * 1.421413741f;
    p = p * t - 0.5f * 0.284496736f;
    p = p * t + 0.5f * 0.254829592f;
    *exp_out = exp2_approx(x * (x * -0.72134752f));  // log2(e) / 2
    return p * t * *exp_out;
  }
  template <bool kCoarse>
  static __device__ __forceinline__ float value(float x) {
    if constexpr (kCoarse) {
      float e;
      const float far = fminf(fabsf(x), 1e4f);
      return fmaxf(x, 0.f) - far * tail(x, far, &e);
    }
    return 0.5f * x * (1.f + erff(x * 0.70710678f));
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Both both(float x) {
    constexpr float kDensity = 0.39894228f;
    if constexpr (kCoarse) {
      float e;
      const float far = fminf(fabsf(x), 1e4f), below = tail(x, far, &e), integral = x < 0.f ? below : 1.f - below;
      return {fmaxf(x, 0.f) - far * below, integral + x * (kDensity * e)};
    }
    const float integral = 0.5f * (1.f + erff(x * 0.70710678f));
    return {x * integral, integral + x * (kDensity * expf(-0.5f * (x * x)))};
  }
};

struct GeluTanh {  // u = x (2 k + 2 k a x^2)
  static constexpr float kTwo = 1.5957691216f, kCubic = 1.5957691216f * 0.044715f;
  template <bool kCoarse>
  static __device__ __forceinline__ float value(float x) {
    return x * sigmoid<kCoarse>(x * (x * x * kCubic + kTwo));
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Both both(float x) {
    const float s = fminf(x * x, 1e9f);  // its slope must not become infinity * 0
    return gated(x, sigmoid<kCoarse>(x * (s * kCubic + kTwo)), s * (3.f * kCubic) + kTwo);
  }
};

struct GeluQuick {
  template <bool kCoarse>
  static __device__ __forceinline__ float value(float x) {
    return x * sigmoid<kCoarse>(1.702f * x);
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Both both(float x) {
    return gated(x, sigmoid<kCoarse>(1.702f * x), 1.702f);
  }
};

struct ReluSquared {
  static __device__ __forceinline__ float positive(float x) { return x < 0.f ? 0.f : x; }  // NaN stays
  template <bool kCoarse>
  static __device__ __forceinline__ float value(float x) {
    const float r = positive(x);
    return r * r;
  }
  template <bool kCoarse>
  static __device__ __forceinline__ Both both(float x) {
    const float r = positive(x);
    return {r * r, r + r};
  }
};

template <class T>
constexpr bool kCoarseOf = sizeof(T) == 2;

}  // namespace kernels::gpu
