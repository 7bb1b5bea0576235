// What state-space layers do across time, as functions: a short convolution, the scans of Mamba and Mamba-2, and a step
// of each for one new token. The stock forwards round where transformers' torch functions of the same names do.
//
// Sequences that are packed into one row do not see each other where seq_idx is given: [batch, time] int32, which
// sequence a token is of, from 0. An initial state is the first one's.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "hotswap/layers/slot.h"

namespace hotswap {

using OptionalTensor = std::optional<Tensor>;

// causal_conv1d/1. Each channel for itself: a token and those before it, weight's last column the token's own.
// x: [batch, channels, time], weight: [channels, width], bias: [channels], initial_state, the tokens before the first:
// [batch, channels, width - 1] -> like x. activation: "silu" or "none"
using CausalConv1dForward = Tensor(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                   const OptionalTensor& initial_state, const OptionalTensor& seq_idx,
                                   const std::string& activation);

// causal_conv1d_update/1. state, the last tokens: [batch, channels, width - 1 or more]; x moves in from behind.
using CausalConv1dUpdateForward = Tensor(const Tensor& x, const Tensor& state, const Tensor& weight,
                                         const OptionalTensor& bias, const std::string& activation);

// selective_scan/1. dt = softplus(delta + delta_bias); h = exp(dt A) h + dt B u; y = (C h + D u) silu(z), h before the
// first token the initial_state.
struct SelectiveScanInputs {
  Tensor u, delta;                    // [batch, channels, time]
  Tensor A;                           // [channels, state] float32
  Tensor B, C;                        // [batch, state, time]
  OptionalTensor D = {}, z = {};      // [channels], like u
  OptionalTensor delta_bias = {};     // [channels]
  OptionalTensor initial_state = {};  // [batch, channels, state]
  OptionalTensor seq_idx = {};
  bool delta_softplus = true;
};
// -> y like u, and h behind the last token, float32: [batch, channels, state]
using SelectiveScanForward = std::tuple<Tensor, Tensor>(const SelectiveScanInputs& inputs);

// selective_state_update/1. One token of either scan; `state` is written in place. Of Mamba-2 with [heads, head_dim] in
// place of channels, and B, C: [batch, groups, state]
struct StateUpdateInputs {
  Tensor state;                   // [batch, channels, state] float32
  Tensor x, dt;                   // [batch, channels]
  Tensor A;                       // [channels, state] float32
  Tensor B, C;                    // [batch, state]
  OptionalTensor D = {}, z = {};  // [channels], like x
  OptionalTensor dt_bias = {};    // [channels]
  bool dt_softplus = true;
};
using StateUpdateForward = Tensor(const StateUpdateInputs& inputs);  // -> like x

// ssd/1. Mamba-2's scan: as the other, with one A for a head, and B, C for a group of heads; dt is clamped.
struct SsdInputs {
  Tensor x;                           // [batch, time, heads, head_dim]
  Tensor dt;                          // [batch, time, heads]
  Tensor A;                           // [heads] float32
  Tensor B, C;                        // [batch, time, groups, state]
  OptionalTensor D = {}, z = {};      // [heads], like x
  OptionalTensor dt_bias = {};        // [heads]
  OptionalTensor initial_state = {};  // [batch, heads, head_dim, state]
  OptionalTensor seq_idx = {};
  int64_t chunk_size = 256;  // how many tokens are multiplied at once: no more than a hint
  bool dt_softplus = true;
  double dt_min = 0, dt_max = 0;
};
// -> y: [batch, time, heads, head_dim], in float32 or, of a kernel, in x's dtype; h behind the last token, float32
using SsdForward = std::tuple<Tensor, Tensor>(const SsdInputs& inputs);

// gated_rms_norm/1. x silu(z) over its root mean square in each group of group_size values, times weight; with
// norm_before_gate x alone is divided, and the gate comes last. x, z: [..., dim], weight: [dim] -> [..., dim] in z's
// dtype
using GatedRmsNormForward = Tensor(const Tensor& x, const Tensor& z, const Tensor& weight, double eps,
                                   int64_t group_size, bool norm_before_gate);

namespace stock {
GatedRmsNormForward gated_rms_norm;
CausalConv1dForward causal_conv1d;
CausalConv1dUpdateForward causal_conv1d_update;
SelectiveScanForward selective_scan;
StateUpdateForward selective_state_update;
SsdForward ssd;
}  // namespace stock

}  // namespace hotswap
