// Which of the scan's kernels serves a call.
#pragma once

#include <initializer_list>

#include "kernels/common/gpu/launch.h"
#include "kernels/mamba/cuda/sm80_scan.cuh"

namespace mamba::scan::gpu {

// Are all views (those that there are) of u's type in whole vectors along channels, or along steps?
inline Contiguous contiguous_of(const Problem& p, std::initializer_list<View> views) {
  const auto all = [&](bool channels) {
    for (const View& v : views) {
      if (v.data == nullptr) continue;
      const int64_t beside = channels ? v.channel : v.step;
      const uint64_t apart = uint64_t(p.batch > 1 ? v.batch : 0) |
                             uint64_t(channels ? (p.length > 1 ? v.step : 0) : (p.channels > 1 ? v.channel : 0));
      if (v.type != p.u.type || beside != 1 || apart % kVector != 0 ||
          reinterpret_cast<uintptr_t>(v.data) % kernels::kVectorBytes != 0)
        return false;
    }
    return (channels ? p.channels / p.groups : p.length) % kVector == 0;
  };
  if (p.states > 16 || p.b.constant || p.c.constant) return Contiguous::kAny;  // rare
  return all(true) ? Contiguous::kChannels : all(false) ? Contiguous::kSteps : Contiguous::kAny;
}

// B and C of 16 states: in whole vectors of u's type?
inline TokenLayouts token_layouts(const Problem& p) {
  const auto of = [&](const Coefficients& c) {
    const auto whole = [&](int64_t beside, int64_t apart) {
      const uint64_t strides =
          uint64_t(p.batch > 1 ? c.view.batch : 0) | uint64_t(p.groups > 1 ? c.group : 0) | uint64_t(apart);
      return beside == 1 && strides % kVector == 0 &&
             reinterpret_cast<uintptr_t>(c.view.data) % kernels::kVectorBytes == 0;
    };
    if (p.states != 16 || c.constant || c.view.type != p.u.type) return Contiguous::kAny;
    if (p.length % kVector == 0 && whole(c.view.step, c.view.channel)) return Contiguous::kSteps;
    return whole(c.view.channel, c.view.step) ? Contiguous::kChannels : Contiguous::kAny;
  };
  return {of(p.b), of(p.c)};
}

// fn<T, kContiguous, S>(): up to 16 states take whole vectors, with kEach channels a lane; more are rare.
template <int kEach, class Fn>
void with_shape(const Problem& p, Contiguous contiguous, const Fn& fn) {
  using Few = Shape<4, 4, kEach>;
  if (contiguous == Contiguous::kAny) {
    if (p.states <= 16) return fn.template operator()<void, Contiguous::kAny, Few>();
    if (p.states <= 32) return fn.template operator()<void, Contiguous::kAny, Shape<8, 4, 2>>();
    if (p.states <= 64) return fn.template operator()<void, Contiguous::kAny, Shape<16, 4, 2>>();
    if (p.states <= 128) return fn.template operator()<void, Contiguous::kAny, Shape<32, 4, 2>>();
    return fn.template operator()<void, Contiguous::kAny, Shape<32, 8, 1>>();
  }
  kernels::with_dtype(p.u.type, [&]<typename T>() {
    contiguous == Contiguous::kChannels ? fn.template operator()<T, Contiguous::kChannels, Few>()
                                        : fn.template operator()<T, Contiguous::kSteps, Few>();
  });
}

// fn<kPacked, kConstant>(): what takes elements one by one is prepared for everything.
template <Contiguous kContiguous, class Fn>
void with_kinds(const Problem& p, const Fn& fn) {
  if constexpr (kContiguous == Contiguous::kAny)
    return fn.template operator()<true, true>();
  else
    p.sequence.data != nullptr ? fn.template operator()<true, false>() : fn.template operator()<false, false>();
}

}  // namespace mamba::scan::gpu
