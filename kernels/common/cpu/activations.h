// Activation functions on vectors, for every package that has them. kernels/common/gpu/activations.cuh has the same for
// a GPU.
#pragma once

#include "kernels/common/cpu/math.h"

namespace kernels::HOTSWAP_ISA {

// value: act(x). both: act(x) and act'(x), sharing what is dear. kP: coarse where the result becomes bfloat16.
struct Both {
  F value, slope;
};

HOTSWAP_INLINE Both gated(F x, F s, F du) { return {x * s, s + x * s * (1.f - s) * du}; }  // of x * sigmoid(u(x))

struct Silu {
  template <Precision kP>
  HOTSWAP_INLINE F value(F x) {
    return x * sigmoid<kP>(x);
  }
  template <Precision kP>
  HOTSWAP_INLINE Both both(F x) {
    return gated(x, sigmoid<kP>(x), splat<F>(1.f));
  }
};
struct Gelu {
  template <Precision kP>
  HOTSWAP_INLINE F value(F x) {
    return x * normal_integral(x);
  }
  template <Precision kP>
  HOTSWAP_INLINE Both both(F x) {
    const F integral = normal_integral(x);
    return {x * integral, integral + x * normal_density<kP>(x)};
  }
};
// x sigmoid(u), u = x (2 k + 2 k a x^2), since (1 + tanh v) / 2 = sigmoid(2 v): that keeps the relative precision of
// very negative x.
struct GeluTanh {
  static constexpr float kTwo = 1.5957691216f, kCubic = 1.5957691216f * 0.044715f;
  template <Precision kP>
  HOTSWAP_INLINE F value(F x) {
    return x * sigmoid<kP>(x * (x * x * kCubic + kTwo));
  }
  template <Precision kP>
  HOTSWAP_INLINE Both both(F x) {
    const F s = clamp(x * x, 0.f, 1e9f);  // its slope must not become infinity * 0
    return gated(x, sigmoid<kP>(x * (s * kCubic + kTwo)), s * (3.f * kCubic) + kTwo);
  }
};
struct GeluQuick {
  template <Precision kP>
  HOTSWAP_INLINE F value(F x) {
    return x * sigmoid<kP>(1.702f * x);
  }
  template <Precision kP>
  HOTSWAP_INLINE Both both(F x) {
    return gated(x, sigmoid<kP>(1.702f * x), splat<F>(1.702f));
  }
};
struct ReluSquared {
  HOTSWAP_INLINE F positive(F x) { return select(x < F{}, F{}, x); }  // NaN stays
  template <Precision kP>
  HOTSWAP_INLINE F value(F x) {
    const F r = positive(x);
    return r * r;
  }
  template <Precision kP>
  HOTSWAP_INLINE Both both(F x) {
    const F r = positive(x);
    return {r * r, r + r};
  }
};

}  // namespace kernels::HOTSWAP_ISA
