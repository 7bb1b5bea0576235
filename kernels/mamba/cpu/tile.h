// Tiles of float32, [steps][pitch], read from and written to views of any layout: what computes knows neither types nor
// strides, and has channels as lanes of vectors.
#pragma once

#include "kernels/common/cpu/transpose.h"
#include "kernels/mamba/mamba.h"

namespace mamba::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// Channels [channel, channel + channels) of one batch entry.
struct Block {
  int64_t batch, channel;
  int channels;
  int vectors() const { return (channels + kLanes - 1) / kLanes; }
};
// Block i of all batch entries' blocks.
HOTSWAP_INLINE Block block_of(int64_t channels, int64_t i) {
  const int64_t blocks = blocks_of(channels), first = i % blocks * kBlock;
  return {i / blocks, first, int(channels - first < kBlock ? channels - first : kBlock)};
}

template <class T>
HOTSWAP_INLINE T* place(const View& v, const Block& b, int64_t step) {
  return static_cast<T*>(v.data) + b.batch * v.batch + b.channel * v.channel + step * v.step;
}

// fn(steps, lanes) for squares of kLanes steps and kLanes channels, fewer at the ends.
template <class Fn>
HOTSWAP_INLINE void squares(int channels, int64_t steps, Fn fn) {
  for (int64_t t = 0; t < steps; t += kLanes) {
    for (int c = 0; c < channels; c += kLanes) {
      fn(t, c, int(steps - t < kLanes ? steps - t : kLanes), channels - c < kLanes ? channels - c : kLanes);
    }
  }
}

// Steps [first, first + steps) of v; lanes behind the last channel, up to whole vectors, are 0.
static void load_tile(const View& v, const Block& b, int64_t first, int64_t steps, float* tile, int64_t pitch = kRow) {
  with_dtype(v.type, [&]<typename T>() {
    const T* from = place<const T>(v, b, first);
    if (v.channel == 1) {
      for (int64_t t = 0; t < steps; ++t, from += v.step) {
        sweep(b.channels,
              [&](int64_t c, auto count) HOTSWAP_LAMBDA { store(tile + t * pitch + c, load(from + c, count)); });
      }
    } else if (v.step == 1) {
      squares(b.channels, steps, [&](int64_t t, int c, int high, int wide) HOTSWAP_LAMBDA {
        F rows[kLanes] = {};
        for (int l = 0; l < wide; ++l) {
          const T* row = from + (c + l) * v.channel + t;
          rows[l] = high == kLanes ? load(row) : load(row, Part{high});
        }
        transpose(rows);
        for (int s = 0; s < high; ++s) store(tile + (t + s) * pitch + c, rows[s]);
      });
    } else {
      for (int64_t t = 0; t < steps; ++t) {
        float* row = tile + t * pitch;
        for (int c = 0; c < b.channels; ++c) row[c] = to_float(from[t * v.step + c * v.channel]);
        for (int c = b.channels; c < b.vectors() * kLanes; ++c) row[c] = 0.f;
      }
    }
  });
}

// The other way.
static void store_tile(const View& v, const Block& b, int64_t first, int64_t steps, const float* tile,
                       int64_t pitch = kRow) {
  with_dtype(v.type, [&]<typename T>() {
    T* to = place<T>(v, b, first);
    if (v.channel == 1) {
      for (int64_t t = 0; t < steps; ++t, to += v.step) {
        sweep(b.channels,
              [&](int64_t c, auto count) HOTSWAP_LAMBDA { store(to + c, load(tile + t * pitch + c), count); });
      }
    } else if (v.step == 1) {
      squares(b.channels, steps, [&](int64_t t, int c, int high, int wide) HOTSWAP_LAMBDA {
        F rows[kLanes] = {};
        for (int s = 0; s < high; ++s) rows[s] = load(tile + (t + s) * pitch + c);
        transpose(rows);
        for (int l = 0; l < wide; ++l) {
          T* row = to + (c + l) * v.channel + t;
          high == kLanes ? store(row, rows[l]) : store(row, rows[l], Part{high});
        }
      });
    } else {
      for (int64_t t = 0; t < steps; ++t) {
        for (int c = 0; c < b.channels; ++c) to[t * v.step + c * v.channel] = from_float<T>(tile[t * pitch + c]);
      }
    }
  });
}

HOTSWAP_INLINE void clear_tile(float* tile, int64_t steps) {
  __builtin_memset(tile, 0, sizeof(float) * size_t(steps * kRow));
}

}  // namespace mamba::HOTSWAP_ISA
