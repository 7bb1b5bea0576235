// Causal convolution along time, each channel with its own filter of `width` taps, and what it is in a step of
// generation.
//
//   p_t = b + sum over j < width of w_j x_{t-j},   w_j = weight[width - 1 - j];   y = p sigmoid(p), or p
//   x_t for t < 0: the last width - 1 columns of the initial state, 0 without one
//   A tap counts only where both tokens belong to one sequence; the initial state belongs to the first token's.
//   y of padding (a negative sequence) is 0.
//
// Backward, with g_t = dy_t sigmoid(p_t) (1 + p_t (1 - sigmoid(p_t))), or dy_t; 0 for padding:
//   dx_t = sum_j w_j g_{t+j},  dw_j = sum over batch and t of g_t x_{t-j},  db = sum of g,  the same taps
//   The initial state's gradient is dx of its columns; columns before the last width - 1 get 0.
// p is computed again from x, not saved.
//
// Casting: each input has a type of its own; float32 inside, every result rounded once, a gradient to its input's type.
// Order of sums: over time in parts of kPart steps, then over parts and batch, whatever the number of threads.
#pragma once

#include "kernels/mamba/mamba.h"

namespace mamba::conv {

constexpr int kMaxTaps = 8;
constexpr int64_t kPart = 512;  // steps of one item of work

struct Problem {
  int64_t batch, channels, length;
  int width;
  bool silu;
  View x;              // [batch, channels, length]
  View weight;         // [channels, width]
  View bias;           // [channels]
  View initial;        // [batch, channels, width - 1]
  Sequences sequence;  // [batch, length]
};
HOTSWAP_INLINE int64_t parts_of(const Problem& p) { return (p.length + kPart - 1) / kPart; }
HOTSWAP_INLINE int64_t items_of(const Problem& p) { return p.batch * parts_of(p) * blocks_of(p.channels); }

struct Forward {
  Problem of;
  View y;
};

struct Backward {
  Problem of;
  View dy, dx;
  View dinitial;    // [batch, channels, width - 1]
  float* partials;  // [batch x parts, width + 1, channels]: the sums of each item, of the weights and then of the bias
  View dweight, dbias;
};

// One or a few new tokens: y as above with the state before x, and the state moves on. The state's `columns` are its
// last inputs, the newest at the end; with `lengths` a ring, whose token t lies in column t modulo columns.
struct Update {
  Problem of;  // initial and sequence are not read
  View state;  // [rows, channels, columns], columns >= width - 1
  int64_t columns;
  const int32_t* lengths;  // [batch]: tokens before x; null: no ring
  const int32_t* indices;  // [batch]: the row of each; negative: y is 0; null: row b is entry b's
  View y;
};

// forward, backward: items_of(p). sum_partials: channels. update: items of batch x blocks_of(channels).
struct Table {
  void (*forward)(const Forward&, int64_t begin, int64_t end);
  void (*backward)(const Backward&, int64_t begin, int64_t end);
  void (*sum_partials)(const Backward&, int64_t begin, int64_t end);
  void (*update)(const Update&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace mamba::conv
