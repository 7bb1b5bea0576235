// The convolution of one tile, channels as lanes.
#pragma once

#include "kernels/common/cpu/math.h"
#include "kernels/mamba/conv.h"
#include "kernels/mamba/cpu/tile.h"

namespace mamba::conv::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;
using namespace mamba::HOTSWAP_ISA;

constexpr int64_t kSteps = 64;       // of a tile
constexpr int kHalo = kMaxTaps - 1;  // rows before and behind it, room for the widest filter
constexpr uint32_t kEveryTap = 0xff, kPadding = 0x100;

// The block's weights as they lie, the tap of the newest token last, and the bias behind them: [width + 1][kRow].
static void load_filter(const Problem& p, Block b, float* filter) {
  b.batch = 0;
  load_tile(p.weight, b, 0, p.width, filter);
  float* bias = filter + p.width * kRow;
  p.bias.data != nullptr ? load_tile(p.bias, b, 0, 1, bias) : clear_tile(bias, 1);
}
// w_j of W weights.
HOTSWAP_INLINE float* tap(float* filter, int width, int j) { return filter + (width - 1 - j) * kRow; }
HOTSWAP_INLINE const float* tap(const float* filter, int width, int j) { return filter + (width - 1 - j) * kRow; }

template <class Fn>
HOTSWAP_INLINE void with_width(int width, Fn fn) {
  switch (width) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 3:
      return fn.template operator()<3>();
    case 4:
      return fn.template operator()<4>();
    case 5:
      return fn.template operator()<5>();
    case 6:
      return fn.template operator()<6>();
    case 7:
      return fn.template operator()<7>();
    default:
      return fn.template operator()<8>();
  }
}

// sum over the taps that count of w[j] of the value at(j).
template <int W, class At>
HOTSWAP_INLINE F sum_taps(F start, const F (&w)[W], uint32_t taps, At at) {
  if (__builtin_expect(taps == kEveryTap, 1)) {
    for (int j = 0; j < W; ++j) start += w[j] * at(j);
  } else {
    for (int j = 0; j < W; ++j) {
      if ((taps >> j & 1) != 0) start += w[j] * at(j);
    }
  }
  return start;
}

// y of `steps` steps: x points at the first, its history in the rows before.
template <int W>
static void convolve(const float* x, const float* filter, const uint32_t* taps, int64_t steps, int vectors, bool silu,
                     float* y) {
  for (int i = 0; i < vectors; ++i) {
    const int64_t c = i * kLanes;
    F w[W];
    for (int j = 0; j < W; ++j) w[j] = load(tap(filter, W, j) + c);
    const F bias = load(filter + W * kRow + c);
    for (int64_t s = 0; s < steps; ++s) {
      const float* now = x + s * kRow + c;
      F p = sum_taps<W>(bias, w, taps[s], [&](int j) HOTSWAP_LAMBDA { return load(now - j * kRow); });
      if (silu) p *= sigmoid(p);
      store(y + s * kRow + c, taps[s] == kPadding ? F{} : p);
    }
  }
}

}  // namespace mamba::conv::HOTSWAP_ISA
