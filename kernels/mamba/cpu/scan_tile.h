// What forward and backward of the scan share: which channels an item has, and the inputs of a chunk of it.
#pragma once

#include "kernels/mamba/cpu/exp2.h"
#include "kernels/mamba/cpu/gate.h"
#include "kernels/mamba/cpu/tile.h"
#include "kernels/mamba/scan.h"

namespace mamba::scan::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;
using namespace mamba::HOTSWAP_ISA;

constexpr int64_t kTile = kChunk * kRow + 16;

struct Scratch {
  float* next;
  float* take(int64_t count) {
    float* taken = next;
    next += count;
    return taken;
  }
};

// Block k of a group's channels.
HOTSWAP_INLINE Block group_block(const Problem& p, int64_t batch, int64_t group, int64_t k) {
  const int64_t size = p.channels / p.groups, left = size - k * kBlock;
  return {batch, group * size + k * kBlock, int(left < kBlock ? left : kBlock)};
}
HOTSWAP_INLINE View of_group(const Coefficients& given, int64_t group) {
  View view = given.view;
  view.data = static_cast<char*>(view.data) + group * given.group * size_of(view.type);
  return view;
}

// Where the sequences of a chunk begin.
struct Marks {
  bool whole;  // one sequence, no padding
  bool padding[kChunk];
  uint32_t enters[kChunk];  // all bits: the state comes from the step before; 0: it starts from 0
};
static void find_marks(const Problem& p, int64_t batch, int64_t first, int64_t steps, Marks& marks) {
  marks.whole = true;
  if (p.sequence.data == nullptr) return;
  int32_t current = -1;  // the sequence so far
  for (int64_t t = first - 1; t >= 0 && current < 0; --t) current = sequence_of(p.sequence, batch, t);
  for (int64_t s = 0; s < steps; ++s) {
    const int32_t own = sequence_of(p.sequence, batch, first + s);
    marks.padding[s] = own < 0;
    marks.enters[s] = own >= 0 && current >= 0 && own != current ? 0u : ~0u;
    if (own >= 0) current = own;
    marks.whole &= own >= 0 && marks.enters[s] != 0;
  }
}

// Padding becomes rows of zeros, whatever stood there.
static void clear_padding(const Marks& marks, int64_t steps, float* tile, int64_t pitch) {
  if (marks.whole) return;
  for (int64_t s = 0; s < steps; ++s) {
    if (marks.padding[s]) __builtin_memset(tile + s * pitch, 0, sizeof(float) * size_t(pitch));
  }
}

// The inputs of a chunk of one block of channels.
struct Inputs {
  float* rate;           // [states][kRow]: A log2 e
  float *b, *c;          // [kChunk][padded states], or constant: [states][kRow]
  float *u, *delta, *x;  // [kChunk][kRow]; delta: Δ; x: Δ u
  float *skip, *bias;    // [kRow]: D and the bias of delta
  Marks marks;

  Inputs(const Problem& p, Scratch& scratch) {
    const int64_t states = p.states * kRow, tokens = kChunk * padded_states(p);
    rate = scratch.take(states);
    b = scratch.take(p.b.constant ? states : tokens);
    c = scratch.take(p.c.constant ? states : tokens);
    u = scratch.take(kTile), delta = scratch.take(kTile), x = scratch.take(kTile);
    skip = scratch.take(kRow), bias = scratch.take(kRow);
  }
};

static void load_vector(const View& v, Block block, float* to) {
  block.batch = 0;
  v.data != nullptr ? load_tile(v, block, 0, 1, to) : clear_tile(to, 1);
}

// What does not change over time.
static void load_channels(const Problem& p, Block block, Inputs& in) {
  block.batch = 0;
  load_tile(p.a, block, 0, p.states, in.rate);
  for (int64_t n = 0; n < p.states; ++n) {
    for (int c = 0; c < block.vectors(); ++c) {
      float* at = in.rate + n * kRow + c * kLanes;
      store(at, load(at) * kLog2E);
    }
  }
  if (p.b.constant) load_tile(p.b.view, block, 0, p.states, in.b);
  if (p.c.constant) load_tile(p.c.view, block, 0, p.states, in.c);
  load_vector(p.d, block, in.skip);
  load_vector(p.delta_bias, block, in.bias);
}

static void load_tokens(const Problem& p, const Coefficients& given, int64_t batch, int64_t group, int64_t first,
                        int64_t steps, const Marks& marks, float* to) {
  if (given.constant) return;
  load_tile(of_group(given, group), {batch, 0, p.states}, first, steps, to, padded_states(p));
  clear_padding(marks, steps, to, padded_states(p));
}

// Steps [first, first + steps). slope: null, or where the derivative of Δ goes.
static void load_chunk(const Problem& p, const Block& block, int64_t group, int64_t first, int64_t steps, Inputs& in,
                       float* slope) {
  find_marks(p, block.batch, first, steps, in.marks);
  load_tokens(p, p.b, block.batch, group, first, steps, in.marks, in.b);
  load_tokens(p, p.c, block.batch, group, first, steps, in.marks, in.c);
  load_tile(p.u, block, first, steps, in.u);
  load_tile(p.delta, block, first, steps, in.delta);
  clear_padding(in.marks, steps, in.u, kRow);
  for (int64_t s = 0; s < steps; ++s) {
    const bool padding = !in.marks.whole && in.marks.padding[s];
    for (int i = 0; i < block.vectors(); ++i) {
      const int64_t at = s * kRow + i * kLanes;
      const F raw = load(in.delta + at) + load(in.bias + i * kLanes), one = F{} + 1.f;
      const F delta = padding ? F{} : p.softplus ? softplus(raw) : raw;
      store(in.delta + at, delta);
      store(in.x + at, delta * load(in.u + at));
      if (slope == nullptr) continue;
      store(slope + at, padding ? F{} : p.softplus ? select((I)(raw > F{} + 20.f), one, sigmoid(raw)) : one);
    }
  }
}

// B or C at step s for state n: one number for all lanes, or, where it is constant, a vector of them.
template <bool kConstant>
struct Coefficient {
  const float* from;
  int64_t pitch;
  F held;
  Coefficient(const float* rows, int64_t row_pitch, int64_t n, int64_t channel) : from(rows + n), pitch(row_pitch) {
    if constexpr (kConstant) held = load(rows + n * kRow + channel);
  }
  HOTSWAP_LAMBDA auto operator()(int64_t s) const {
    if constexpr (kConstant)
      return held;
    else
      return from[s * pitch];
  }
};

HOTSWAP_INLINE F entering(F v, uint32_t enters) { return as_float(bits(v) & enters); }

// fn<kPacked, constant B, constant C>()
template <class Fn>
HOTSWAP_INLINE void with_kinds(bool packed, bool b, bool c, Fn fn) {
  const auto with_b = [&]<bool kPacked, bool kB>() HOTSWAP_LAMBDA {
    c ? fn.template operator()<kPacked, kB, true>() : fn.template operator()<kPacked, kB, false>();
  };
  const auto with_packed = [&]<bool kPacked>() HOTSWAP_LAMBDA {
    b ? with_b.template operator()<kPacked, true>() : with_b.template operator()<kPacked, false>();
  };
  packed ? with_packed.template operator()<true>() : with_packed.template operator()<false>();
}

}  // namespace mamba::scan::HOTSWAP_ISA
