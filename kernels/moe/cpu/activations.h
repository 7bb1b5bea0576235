// Activations on vectors: value(g, u), and both slopes times d. Those without a gate leave u alone.
#pragma once

#include "kernels/common/cpu/activations.h"
#include "kernels/moe/moe.h"

namespace moe::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

struct Slopes {
  F g, u;
};

struct Relu {
  template <Precision>
  HOTSWAP_INLINE F value(F x) {
    return ReluSquared::positive(x);
  }
  template <Precision>
  HOTSWAP_INLINE Both both(F x) {
    return {ReluSquared::positive(x), select((I)(x > F{}), F{} + 1.f, select((I)(x != x), x, F{}))};
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
    const Both b = Inner::template both<kPrecision>(g);
    return {d * u * b.slope, d * b.value};
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
    return {d * Inner::template both<kPrecision>(g).slope, F{}};
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
      return fn.template operator()<Plain<ReluSquared>>();
    case Act::kSilu:
      return fn.template operator()<Plain<Silu>>();
    case Act::kGelu:
      return fn.template operator()<Plain<Gelu>>();
    case Act::kGeluTanh:
      return fn.template operator()<Plain<GeluTanh>>();
  }
}

}  // namespace moe::HOTSWAP_ISA
