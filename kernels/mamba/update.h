// One step of generation of Mamba's and Mamba-2's scans, the state [heads, dim, states] written in place.
//
//   Δ = softplus(dt + bias) or dt + bias;  softplus(x) = log(1 + e^x), x above 20
//   h <- exp(Δ A) h + Δ x B,   y = sum over states of C h + D x;  with z: y z sigmoid(z)
//
// Mamba's has one head whose dim is the channels, and a rate for every number. Mamba-2's rates are one a head,
// expanded: where A has stride 0 along its states, one power serves a row of them.
//
// Casting: each input has a type of its own; float32 inside; the state and y are rounded once.
#pragma once

#include "kernels/mamba/mamba.h"

namespace mamba::update {

constexpr int kMaxStates = 256;

// [batch, heads, dim] as a view of one head, whose channels are dim; its steps are states where it has them.
struct Heads {
  View view;
  int64_t head;  // the stride between heads
};

struct Problem {
  int64_t batch, heads, dim, groups;
  int states;
  bool softplus;
  Heads state;             // [rows, heads, dim, states]
  Heads x, dt, z, y;       // [batch, heads, dim]
  Heads a;                 // [heads, dim, states]
  Heads b, c;              // [batch, groups, states]: here the channels are states
  Heads d, dt_bias;        // [heads, dim]
  const int32_t* indices;  // [batch]: the row of each; negative: y is 0; null: row b is entry b's
};

// Items of batch x heads x blocks_of(dim).
struct Table {
  void (*update)(const Problem&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace mamba::update
