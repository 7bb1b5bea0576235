// State space duality, Mamba-2's scan: every head has a state H [dim, state] that decays by one number a step.
//
//   Δ_t = clamp(softplus(dt_t + dt_bias), dt_min, dt_max)  (without softplus: of dt_t + dt_bias),   l_t = Δ_t A
//   H_t = exp(l_t) H_{t-1} + Δ_t x_t ⊗ B_t,   y_t = H_t C_t + D x_t,   with z: y_t z_t sigmoid(z_t)
//   H_{-1}: the initial state, 0 without one; final_state: the last H. B and C are those of the head's group.
//   A token of another sequence than the one before it starts from 0; the initial state is the first token's. Padding
//   (a negative sequence) is passed over: y 0, no gradients, the state stays.
//
// In chunks of kChunk steps (i, j inside of one; S the sums of l from the chunk's start; H what enters):
//   T_ij = exp(S_i - S_j) for j <= i,  e_i = exp(S_i),  r_j = exp(S_last - S_j),  k = exp(S_last),  G_ij = C_i . B_j
//   T, e, r and k are 0 where a sequence begins between the two
//   y_i = sum_j G_ij T_ij Δ_j x_j + e_i H C_i + D x_i,    H <- k H + sum_j r_j Δ_j x_j ⊗ B_j
//
// Backward, with dy the gradient before the gate, dH that of what leaves a chunk, E_ij = dy_i . x_j:
//   v_j = sum_i G_ij T_ij dy_i + r_j dH B_j,   dx_j = Δ_j v_j + D dy_j,   dΔ_j = v_j . x_j + A dl_j
//   dG_ij = T_ij Δ_j E_ij,   dC_i = sum_j dG_ij B_j + e_i H^T dy_i,   dB_j = sum_i dG_ij C_i + r_j Δ_j dH^T x_j
//   dl_k = sum over i >= k > j of G_ij dG_ij + sum over i >= k of e_i dy_i . (H C_i)
//        + sum over j < k of r_j Δ_j x_j . (dH B_j) + k <H, dH>
//   dH <- k dH + sum_i e_i dy_i ⊗ C_i;   dA = sum of Δ dl,   dD = sum of dy x,   ddt_bias = sum of ddt
// dl sums only the pairs that l_k lies between: differences of row and column sums would cancel.
//
// Casting: float32 inside, every result rounded once; S in float64, so that T of neighbours is exact however far S
// went. Order of sums: heads of a group in blocks of kHeads, tokens in chunks, whatever the number of threads.
#pragma once

#include "kernels/mamba/mamba.h"

namespace mamba::ssd {

constexpr int64_t kChunk = 64;  // steps; on the CPU states are saved at the start of each
constexpr int64_t kMaxGpuState = 256;
constexpr int64_t kHeads = 4;  // of a group, worked on by one thread, which makes G once for them

struct Tokens {  // [batch, length, heads, numbers], numbers beside each other; groups for heads, no numbers in dt
  void* data;    // null: there is none
  int64_t batch, step, head;
};

struct Problem {
  int64_t batch, length, heads, groups, dim, state;
  DType type, dt_type;   // of x, B, C, z, y and their gradients; of dt
  Tokens x, z;           // [batch, length, heads, dim]
  Tokens B, C;           // [batch, length, groups, state]
  Tokens dt;             // [batch, length, heads]
  const float* A;        // [heads]
  const float* D;        // [heads, dim], on a GPU [heads] where not each_D; or null
  bool each_D;           // D has a number for each of a head's
  const float* dt_bias;  // [heads] or null
  const float* initial;  // [batch, heads, dim, state] or null
  Sequences sequence;
  bool softplus;
  float dt_min, dt_max;

  int64_t chunks() const { return (length + kChunk - 1) / kChunk; }
  int64_t blocks() const { return (heads / groups + kHeads - 1) / kHeads; }  // of heads in a group
  int64_t items() const { return batch * groups * blocks(); }
};

struct Forward {
  Problem of;
  Tokens y;
  float* final;   // [batch, heads, dim, state]
  float* states;  // [batch, chunks, heads, state, dim]: what enters each chunk; or null
};

struct Backward {
  Problem of;
  Tokens dy;
  const float* dfinal;         // [batch, heads, dim, state] or null
  const float* states;         // as forward saved them
  Tokens dx, dz, ddt;          // as x, z and dt
  Tokens dB, dC;               // as B and C
  float *dB_parts, *dC_parts;  // [batch, length, groups, blocks, state]: of each block of heads
  // Without batch on a GPU, which has its own parts, and where D is [heads] without dim; null there: not wanted.
  float *dA, *ddt_bias;  // [batch, heads]
  float* dD;             // [batch, heads, dim]
  float* dinitial;       // [batch, heads, dim, state] or null
};

// Float32 numbers of scratch that a thread wants. A row is padded to whole vectors of any width.
HOTSWAP_INLINE int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }
HOTSWAP_INLINE int64_t forward_scratch(const Problem& p) {
  const int64_t dim = padded(p.dim), state = padded(p.state);
  return kChunk * (3 * state + 2 * dim + 2 * kChunk) + (kHeads * dim + 1) * state;
}
HOTSWAP_INLINE int64_t backward_scratch(const Problem& p) {
  const int64_t dim = padded(p.dim), state = padded(p.state);
  return kChunk * (8 * state + 7 * dim + 5 * kChunk) + ((kHeads + 1) * dim + 1) * state + dim;
}

// forward, backward: items [begin, end) with a thread's scratch. sum_parts: rows of batch x length.
struct Table {
  void (*forward)(const Forward&, float* scratch, int64_t begin, int64_t end);
  void (*backward)(const Backward&, float* scratch, int64_t begin, int64_t end);
  void (*sum_parts)(const Backward&, int64_t begin, int64_t end);
};
HOTSWAP_ISA_TABLES(Table)

}  // namespace mamba::ssd
