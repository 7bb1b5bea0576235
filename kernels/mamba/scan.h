// Mamba's selective scan: every channel has a state h of N numbers, each of which decays by a rate of its own.
//
//   Δ_t = softplus(delta_t + bias) or delta_t + bias;  softplus(x) = log(1 + e^x), x above 20
//   h_t[n] = a_t[n] h_{t-1}[n] + Δ_t u_t B_t[n],  a_t[n] = exp(Δ_t A[n]);  h_{-1}: the initial state, 0 without one
//   y_t = sum over n of C_t[n] h_t[n] + D u_t;  with z: y_t z_t sigmoid(z_t).   last_state: the last h
//   B and C are those of the channel's group, or constant in time and of the channel itself.
//   A token of another sequence than the one before it starts from 0; the initial state is the first token's. Padding
//   (a negative sequence) is passed over: y 0, no gradients, the state stays.
//
// Backward, from do and the gradient of last_state, with s = sigmoid(z):
//   dz = do y s (1 + z (1 - s)),  dy = do z s                       (y before the gate)
//   dh_t = C_t dy_t + a_{t+1} dh_{t+1};  the last dh also has the gradient of last_state;  q_t = dh_t a_t h_{t-1}
//   du = D dy + Δ sum_n dh B,  dΔ = u sum_n dh B + sum_n A q,  ddelta = dΔ softplus'
//   dB_t = sum over the group's channels of dh Δ u,  dC_t = of dy h;  of constant ones sums over batch and t instead
//   dA = sum of Δ q,  dD = of dy u,  dbias = of ddelta;  the initial state's gradient is a_0 dh_0
// States are computed again from those that forward_train saved every kChunk (on a GPU kGpuChunk) steps; y is, where z
// wants it.
//
// Casting: each input has a type of its own; float32 inside, last_state and what is saved too; every result is rounded
// once, a gradient to its input's type.
// Order of sums: over time in chunks; over channels in blocks of kBlock, those in kSlots parts; then over the batch,
// whatever the number of threads.
#pragma once

#include "kernels/mamba/mamba.h"

namespace mamba::scan {

constexpr int kMaxStates = 256;
constexpr int64_t kChunk = 64;
constexpr int64_t kGpuChunk = 32;  // a GPU's block has shared memory for so many
constexpr int64_t kSlots = 32;

// B or C: [batch, states, length] of the first group, or [channels, states] where it is constant.
struct Coefficients {
  View view;
  int64_t group;  // the stride between groups
  bool constant;
};

struct Problem {
  int64_t batch, channels, length, groups;
  int states;
  bool softplus;
  View u, delta, z;  // [batch, channels, length]
  View a;            // [channels, states]
  Coefficients b, c;
  View d, delta_bias;  // [channels]
  View initial;        // [batch, channels, states]
  Sequences sequence;
};
HOTSWAP_INLINE int64_t chunks_of(const Problem& p, int64_t chunk = kChunk) { return (p.length + chunk - 1) / chunk; }
HOTSWAP_INLINE int64_t group_blocks_of(const Problem& p) { return blocks_of(p.channels / p.groups); }
HOTSWAP_INLINE int64_t slots_of(const Problem& p) { return group_blocks_of(p) < kSlots ? group_blocks_of(p) : kSlots; }

struct Forward {
  Problem of;
  View y;            // as u
  View last;         // [batch, channels, states]
  View checkpoints;  // [batch, channels, chunks x states]: the state before each chunk; or none
};

struct Backward {
  Problem of;
  View dy, dlast, checkpoints;
  View du, ddelta, dz, dinitial;
  Coefficients db, dc;
  View da, dd, dbias;
  float* token_sums;    // [batch, groups, slots, length, 2, padded states]: of dB and dC, where they change in time
  float* channel_sums;  // [batch, sum_rows_of(p), channels]: of dA, of dB and dC where they are constant, dD, dbias
};
// A row of states, to whole vectors of any width.
HOTSWAP_INLINE int64_t padded_states(const Problem& p) { return (p.states + 15) / 16 * 16; }
HOTSWAP_INLINE int64_t sum_rows_of(const Problem& p) {
  return p.states * (1 + (p.b.constant ? 1 : 0) + (p.c.constant ? 1 : 0)) + 2;
}
HOTSWAP_INLINE int64_t forward_scratch(const Problem& p) {  // float32 numbers that a thread wants
  return 5 * (kChunk * kRow + 16) + 2 * kChunk * padded_states(p) + 4 * p.states * kRow;
}
HOTSWAP_INLINE int64_t backward_scratch(const Problem& p) {
  return 10 * (kChunk * kRow + 16) + 4 * kChunk * padded_states(p) + (5 + 3) * (p.states + 1) * kRow;
}

// forward: items of batch x groups x group_blocks_of. backward: of batch x groups x slots_of. sum_tokens: chunks of
// batch x groups x chunks_of. sum_channels: channels.
struct Table {
  void (*forward)(const Forward&, float* scratch, int64_t begin, int64_t end);
  void (*backward)(const Backward&, float* scratch, int64_t begin, int64_t end);
  void (*sum_tokens)(const Backward&, int64_t begin, int64_t end);
  void (*sum_channels)(const Backward&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace mamba::scan
