// Activations on vectors: value(g, u), and both slopes times d. Those without a gate leave u alone.
#pragma once

#include "kernels/common/cpu/math.h"
#include "kernels/moe/moe.h"

namespace moe::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

struct Slopes {
  F g, u;
};

// x sigmoid(w(x)): silu, and gelu by tanh since (1 + tanh v) / 2 = sigmoid(2 v).
struct Silu {
  template <Precision kPrecision>
  HOTSWAP_INLINE F value(F x) {
    return x * sigmoid<kPrecision>(x);
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE F slope(F x) {
    const F s = sigmoid<kPrecision>(x);
    return s + x * s * (1.f - s);
  }
};
struct GeluTanh {
  static constexpr float kTwoK = 1.5957691216057308f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
  HOTSWAP_INLINE F w(F x) { return kTwoK * (x + kCube * x * x * x); }
  template <Precision kPrecision>
  HOTSWAP_INLINE F value(F x) {
    return x * sigmoid<kPrecision>(w(x));
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE F slope(F x) {
    const F s = sigmoid<kPrecision>(w(x)), v = clamp(x, -1e4f, 1e4f);  // the slope must not become infinity * 0
    return s + x * s * (1.f - s) * (kTwoK * (1.f + 3.f * kCube * v * v));
  }
};
struct Gelu {
  template <Precision>
  HOTSWAP_INLINE F value(F x) {
    return x * normal_integral(x);
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE F slope(F x) {
    return normal_integral(x) + x * normal_density<kPrecision>(clamp(x, -20.f, 20.f));
  }
};
struct Relu {
  template <Precision>
  HOTSWAP_INLINE F value(F x) {
    return select((I)(x < F{}), F{}, x);  // NaN stays
  }
  template <Precision>
  HOTSWAP_INLINE F slope(F x) {
    return select((I)(x > F{}), F{} + 1.f, select((I)(x != x), x, F{}));
  }
};
struct Relu2 {
  template <Precision kPrecision>
  HOTSWAP_INLINE F value(F x) {
    const F r = Relu::value<kPrecision>(x);
    return r * r;
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE F slope(F x) {
    return 2.f * Relu::value<kPrecision>(x);
  }
};

template <class Inner>
struct Gated {
  static constexpr bool kGate = true;
  template <Precision kPrecision>
  HOTSWAP_INLINE F value(const Problem&, F g, F u) {
    return Inner::template value<kPrecision>(g) * u;
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE Slopes slopes(const Problem&, F g, F u, F d) {
    return {d * u * Inner::template slope<kPrecision>(g), d * Inner::template value<kPrecision>(g)};
  }
};
template <class Inner>
struct Plain {
  static constexpr bool kGate = false;
  template <Precision kPrecision>
  HOTSWAP_INLINE F value(const Problem&, F g, F) {
    return Inner::template value<kPrecision>(g);
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE Slopes slopes(const Problem&, F g, F, F d) {
    return {d * Inner::template slope<kPrecision>(g), F{}};
  }
};

// g' sigmoid(alpha g') (u' + more) of clamped numbers.
template <bool kOai>
struct Clamped {
  static constexpr bool kGate = true;
  HOTSWAP_INLINE F gate(const Problem& p, F g) { return select((I)(g > F{} + p.limit), F{} + p.limit, g); }
  template <Precision kPrecision>
  HOTSWAP_INLINE F value(const Problem& p, F g, F u) {
    const F c = gate(p, g), v = clamp(u, -p.limit, p.limit);
    return c * sigmoid<kPrecision>(kOai ? p.alpha * c : c) * (kOai ? v + 1.f : v);
  }
  template <Precision kPrecision>
  HOTSWAP_INLINE Slopes slopes(const Problem& p, F g, F u, F d) {
    const F c = gate(p, g), v = clamp(u, -p.limit, p.limit), alpha = F{} + (kOai ? p.alpha : 1.f);
    const F s = sigmoid<kPrecision>(alpha * c);
    const F dg = d * (kOai ? v + 1.f : v) * (s + alpha * c * s * (1.f - s)), du = d * c * s;
    return {select((I)(g > F{} + p.limit), F{}, dg), select((I)(abs(u) > F{} + p.limit), F{}, du)};
  }
};

// fn.operator()<Formula>()
template <class Fn>
HOTSWAP_INLINE void with_act(Act act, Fn fn) {
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
      return fn.template operator()<Plain<Relu2>>();
    case Act::kSilu:
      return fn.template operator()<Plain<Silu>>();
    case Act::kGelu:
      return fn.template operator()<Plain<Gelu>>();
    case Act::kGeluTanh:
      return fn.template operator()<Plain<GeluTanh>>();
  }
}

}  // namespace moe::HOTSWAP_ISA
