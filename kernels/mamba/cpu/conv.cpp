// The causal convolution on the CPU: tiles of kSteps steps and kBlock channels. Compiled once per ISA.
#include "kernels/mamba/cpu/conv_tile.h"
#include "kernels/mamba/cpu/sums.h"

namespace mamba::conv::HOTSWAP_ISA {

void update(const Update& a, int64_t begin, int64_t end);  // cpu/conv_update.cpp

namespace {

// One item of work: a block of channels, steps [first, end) of it, and which of the sums over time it makes.
struct Item {
  Block block;
  int64_t first, end, part;
};
HOTSWAP_INLINE Item item_of(const Problem& p, int64_t i) {
  const int64_t blocks = blocks_of(p.channels), part = i / blocks, parts = parts_of(p);
  const int64_t first = part % parts * kPart, end = first + kPart < p.length ? first + kPart : p.length;
  Block b = block_of(p.channels, i % blocks);
  b.batch = part / parts;
  return {b, first, end, part};
}
HOTSWAP_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Of each step the taps j that count as bits, or kPadding: steps [first, first + steps) of the time from 0 on.
void find_taps(const Problem& p, int64_t batch, int64_t first, int64_t steps, uint32_t* taps) {
  for (int64_t s = 0; s < steps; ++s) {
    taps[s] = kEveryTap;
    if (p.sequence.data == nullptr) continue;
    const int32_t own = sequence_of(p.sequence, batch, first + s);
    for (int j = 1; j < p.width; ++j) {
      const int64_t t = first + s - j;
      if (sequence_of(p.sequence, batch, t > 0 ? t : 0) != own) taps[s] &= ~(1u << j);
    }
    if (own < 0) taps[s] = kPadding;
  }
}

// x of steps [first, first + steps), also before time 0, to a tile.
void load_inputs(const Problem& p, const Block& b, int64_t first, int64_t steps, float* tile) {
  for (; first < 0 && steps > 0; ++first, --steps, tile += kRow) {
    p.initial.data != nullptr ? load_tile(p.initial, b, p.width - 1 + first, 1, tile) : clear_tile(tile, 1);
  }
  load_tile(p.x, b, first, steps, tile);
}

void forward(const Forward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  alignas(64) float filter[(kMaxTaps + 1) * kRow], x[(kHalo + kSteps) * kRow], y[kSteps * kRow];
  uint32_t taps[kSteps];
  for (int64_t i = begin; i < end; ++i) {
    const Item item = item_of(p, i);
    const int64_t halo = p.width - 1;
    load_filter(p, item.block, filter);
    for (int64_t t = item.first; t < item.end; t += kSteps) {
      const int64_t steps = least(kSteps, item.end - t);
      if (t == item.first)
        load_inputs(p, item.block, t - halo, halo, x);
      else  // the last rows of the tile before
        __builtin_memcpy(x, x + kSteps * kRow, sizeof(float) * size_t(halo * kRow));
      load_tile(p.x, item.block, t, steps, x + halo * kRow);
      find_taps(p, item.block.batch, t, steps, taps);
      with_width(p.width, [&]<int W>() HOTSWAP_LAMBDA {
        convolve<W>(x + halo * kRow, filter, taps, steps, item.block.vectors(), p.silu, y);
      });
      store_tile(a.y, item.block, t, steps, y);
    }
  }
}

// What a tile of the backward holds. Its first step's x lies behind kHalo rows of history, and g has kHalo rows more
// than the tile has steps: what later outputs give to these inputs.
struct Tile {
  alignas(64) float filter[(kMaxTaps + 1) * kRow], sums[(kMaxTaps + 1) * kRow];
  float x[(kHalo + kSteps + kHalo) * kRow], g[(kSteps + kHalo) * kRow], dx[(kHalo + kSteps) * kRow];
  uint32_t taps[kSteps + kHalo];
};

// dy in tile.g becomes the gradient of p; of the first `own` steps its products with x are added to the sums.
template <int W>
static void differentiate(Tile& tile, int64_t steps, int64_t own, int vectors, bool silu) {
  for (int i = 0; i < vectors; ++i) {
    const int64_t c = i * kLanes;
    F w[W], sums[W], bias_sum = load(tile.sums + W * kRow + c);
    for (int j = 0; j < W; ++j) w[j] = load(tap(tile.filter, W, j) + c), sums[j] = load(tap(tile.sums, W, j) + c);
    const F bias = load(tile.filter + W * kRow + c);
    for (int64_t s = 0; s < steps; ++s) {
      const float* now = tile.x + (kHalo + s) * kRow + c;
      float* to = tile.g + s * kRow + c;
      const uint32_t taps = tile.taps[s];
      F g = taps == kPadding ? F{} : load(to);
      if (silu && taps != kPadding) {
        const F p = sum_taps<W>(bias, w, taps, [&](int j) HOTSWAP_LAMBDA { return load(now - j * kRow); });
        const F sigma = sigmoid(p);
        g *= sigma * (1.f + p * (1.f - sigma));
      }
      store(to, g);
      if (s >= own || taps == kPadding) continue;
      bias_sum += g;
      for (int j = 0; j < W; ++j) {
        if ((taps >> j & 1) != 0) sums[j] += g * load(now - j * kRow);
      }
    }
    for (int j = 0; j < W; ++j) store(tap(tile.sums, W, j) + c, sums[j]);
    store(tile.sums + W * kRow + c, bias_sum);
  }
}

// dx of step s: what outputs s, s + 1, ... took from it. `first` < 0: also of columns of the initial state.
template <int W>
static void gather(Tile& tile, int64_t first, int64_t steps, int64_t known, int vectors) {
  for (int i = 0; i < vectors; ++i) {
    const int64_t c = i * kLanes;
    F w[W];
    for (int j = 0; j < W; ++j) w[j] = load(tap(tile.filter, W, j) + c);
    for (int64_t s = first; s < steps; ++s) {
      F dx{};
      for (int j = 0; j < W; ++j) {
        const int64_t by = s + j;
        if (by < 0 || by >= known || (tile.taps[by] >> j & 1) == 0) continue;
        dx += w[j] * load(tile.g + by * kRow + c);
      }
      store(tile.dx + (kHalo + s) * kRow + c, dx);
    }
  }
}

void backward(const Backward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  Tile tile;
  for (int64_t i = begin; i < end; ++i) {
    const Item item = item_of(p, i);
    const Block& b = item.block;
    const int64_t halo = p.width - 1;
    load_filter(p, b, tile.filter);
    clear_tile(tile.sums, p.width + 1);
    for (int64_t t = item.first; t < item.end; t += kSteps) {
      const int64_t own = least(kSteps, item.end - t), known = least(own + halo, p.length - t);
      load_inputs(p, b, t - halo, halo + known, tile.x + (kHalo - halo) * kRow);
      load_tile(a.dy, b, t, known, tile.g);
      find_taps(p, b.batch, t, known, tile.taps);
      const int64_t before = t == 0 && a.dinitial.data != nullptr ? -halo : 0;
      with_width(p.width, [&]<int W>() HOTSWAP_LAMBDA {
        differentiate<W>(tile, known, own, b.vectors(), p.silu);
        gather<W>(tile, before, own, known, b.vectors());
      });
      store_tile(a.dx, b, t, own, tile.dx + kHalo * kRow);
      if (before < 0) store_tile(a.dinitial, b, 0, halo, tile.dx + (kHalo - halo) * kRow);
    }
    for (int j = 0; j <= p.width; ++j) {
      float* to = a.partials + (item.part * (p.width + 1) + j) * p.channels + b.channel;
      __builtin_memcpy(to, tile.sums + j * kRow, sizeof(float) * size_t(b.channels));
    }
  }
}

void sum_partials(const Backward& a, int64_t begin, int64_t end) {
  const Problem& p = a.of;
  const int64_t parts = p.batch * parts_of(p), rows = p.width + 1;
  add_entries(a.partials, parts, rows, p.channels, 0, p.width, a.dweight, begin, end);
  add_entries(a.partials, parts, rows, p.channels, p.width, 1, a.dbias, begin, end);
}

}  // namespace

const Table kTable = {.forward = forward, .backward = backward, .sum_partials = sum_partials, .update = update};

}  // namespace mamba::conv::HOTSWAP_ISA
