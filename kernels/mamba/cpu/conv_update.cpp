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

// A thread's tiles. x: the state's columns, or the last of them, and x behind.
struct Tiles {
  alignas(64) float filter[(kMaxTaps + 1) * kRow], x[(kHalo + kSteps) * kRow], y[kSteps * kRow];
  uint32_t taps[kSteps];
};

// y of steps [first, first + steps), which lie in `x` behind their history.
void convolve_steps(const Update& a, const Block& b, Tiles& tiles, const float* x, int64_t first, int64_t steps) {
  with_width(a.of.width, [&]<int W>() HOTSWAP_LAMBDA {
    convolve<W>(x, tiles.filter, tiles.taps, steps, b.vectors(), a.of.silu, tiles.y);
  });
  store_tile(a.y, b, first, steps, tiles.y);
}

// A state and steps that fit a tile together: each is read once, and the state is the tile's last rows.
void step_in_tile(const Update& a, const Block& state, const Block& b, Tiles& tiles) {
  float* x = tiles.x + a.columns * kRow;
  load_tile(a.state, state, 0, a.columns, tiles.x);
  load_tile(a.of.x, b, 0, a.of.length, x);
  convolve_steps(a, b, tiles, x, 0, a.of.length);
  store_tile(a.state, state, 0, a.columns, tiles.x + a.of.length * kRow);
}

// Any number of columns and steps, and rings.
void step_in_parts(const Update& a, const Block& state, const Block& b, Tiles& tiles) {
  const int64_t halo = a.of.width - 1;
  const int64_t before = a.lengths != nullptr ? a.lengths[b.batch] : a.columns;  // its last columns, not a ring
  for (int64_t h = 0; h < halo; ++h)
    load_tile(a.state, state, modulo(before - halo + h, a.columns), 1, tiles.x + h * kRow);
  for (int64_t t = 0; t < a.of.length; t += kSteps) {
    const int64_t steps = a.of.length - t < kSteps ? a.of.length - t : kSteps;
    if (t > 0) __builtin_memcpy(tiles.x, tiles.x + kSteps * kRow, sizeof(float) * size_t(halo * kRow));
    load_tile(a.of.x, b, t, steps, tiles.x + halo * kRow);
    convolve_steps(a, b, tiles, tiles.x + halo * kRow, t, steps);
  }
  a.lengths != nullptr ? write_ring(a, state, b, before, tiles.x) : shift_state(a, state, b, tiles.x);
}

void write_zeros(const Update& a, const Block& b, Tiles& tiles) {
  clear_tile(tiles.y, kSteps);
  for (int64_t t = 0; t < a.of.length; t += kSteps)
    store_tile(a.y, b, t, a.of.length - t < kSteps ? a.of.length - t : kSteps, tiles.y);
}

}  // namespace

void update(const Update& a, int64_t begin, int64_t end) {
  Tiles tiles;
  for (uint32_t& taps : tiles.taps) taps = kEveryTap;
  const bool fits = a.lengths == nullptr && a.columns <= kHalo && a.of.length <= kSteps;
  for (int64_t i = begin; i < end; ++i) {
    const Block b = block_of(a.of.channels, i);
    Block state = b;
    if (a.indices != nullptr) state.batch = a.indices[b.batch];
    if (state.batch < 0) {
      write_zeros(a, b, tiles);
      continue;
    }
    load_filter(a.of, b, tiles.filter);
    fits ? step_in_tile(a, state, b, tiles) : step_in_parts(a, state, b, tiles);
  }
}

}  // namespace mamba::conv::HOTSWAP_ISA
