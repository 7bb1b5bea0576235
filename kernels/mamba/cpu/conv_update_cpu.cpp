// The causal convolution of a few new tokens, with the state of the tokens before. Compiled once per ISA.
#include "kernels/mamba/cpu/conv_tile.h"

namespace mamba::conv::HOTSWAP_ISA {

void update(const Update& a, int64_t begin, int64_t end);

namespace {

HOTSWAP_INLINE int64_t modulo(int64_t a, int64_t n) { return (a % n + n) % n; }

// The state's columns move up by x's steps, and x fills what is free.
void shift_state(const Update& a, const Block& state, const Block& b, float* tile) {
  const int64_t steps = a.of.length, kept = a.columns > steps ? a.columns - steps : 0;
  for (int64_t c = 0; c < kept; c += kSteps) {
    const int64_t n = kept - c < kSteps ? kept - c : kSteps;
    load_tile(a.state, state, c + steps, n, tile);
    store_tile(a.state, state, c, n, tile);
  }
  for (int64_t c = kept; c < a.columns; c += kSteps) {
    const int64_t n = a.columns - c < kSteps ? a.columns - c : kSteps;
    load_tile(a.of.x, b, c + steps - a.columns, n, tile);
    store_tile(a.state, state, c, n, tile);
  }
}

void write_ring(const Update& a, const Block& state, const Block& b, int64_t before, float* tile) {
  const int64_t steps = a.of.length;
  for (int64_t t = steps > a.columns ? steps - a.columns : 0; t < steps; ++t) {
    load_tile(a.of.x, b, t, 1, tile);
    store_tile(a.state, state, modulo(before + t, a.columns), 1, tile);
  }
}

}  // namespace

void update(const Update& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  const int64_t halo = p.width - 1;
  alignas(64) float filter[(kMostTaps + 1) * kRow], x[(kHalo + kSteps) * kRow], y[kSteps * kRow];
  uint32_t taps[kSteps];
  for (uint32_t& t : taps) t = kEveryTap;
  for (int64_t i = begin; i < end; ++i) {
    const Block b = block_of(p.channels, i);
    Block state = b;
    if (a.indices != nullptr) state.batch = a.indices[b.batch];
    if (state.batch < 0) {
      clear_tile(y, kSteps);
      for (int64_t t = 0; t < p.length; t += kSteps)
        store_tile(a.y, b, t, p.length - t < kSteps ? p.length - t : kSteps, y);
      continue;
    }
    load_filter(p, b, filter);
    const int64_t before = a.lengths != nullptr ? a.lengths[b.batch] : a.columns;  // its last columns, not a ring
    for (int64_t h = 0; h < halo; ++h) load_tile(a.state, state, modulo(before - halo + h, a.columns), 1, x + h * kRow);
    for (int64_t t = 0; t < p.length; t += kSteps) {
      const int64_t steps = p.length - t < kSteps ? p.length - t : kSteps;
      if (t > 0) __builtin_memcpy(x, x + kSteps * kRow, sizeof(float) * size_t(halo * kRow));
      load_tile(p.x, b, t, steps, x + halo * kRow);
      with_width(p.width, [&]<int W>() HOTSWAP_LAMBDA {
        convolve<W>(x + halo * kRow, filter, taps, steps, b.vectors(), p.silu, y);
      });
      store_tile(a.y, b, t, steps, y);
    }
    a.lengths != nullptr ? write_ring(a, state, b, before, x) : shift_state(a, state, b, x);
  }
}

}  // namespace mamba::conv::HOTSWAP_ISA
