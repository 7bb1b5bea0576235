// The gated delta rule: linear attention whose state S, [key_dim, value_dim] of each head, a token first decays and
// then corrects by what it lacks of the token's value at the token's key:
// S becomes exp(g) S, then S + k (beta (v - S^T k))^T, and y = S^T q / sqrt(key_dim)
// with queries and keys of length 1. In float32 (float64 of such), in plain ATen: there is no slot, and no kernel.
#pragma once

#include <optional>
#include <tuple>

#include "hotswap/layers/module.h"

namespace hotswap {

struct GatedDeltaInputs {
  Tensor q, k;     // [batch, time, key_heads, key_dim], of any length; a key head serves heads / key_heads heads
  Tensor v;        // [batch, time, heads, value_dim]
  Tensor g, beta;  // [batch, time, heads]: the logarithm of the decay, at most 0; how much is corrected, 0 to 1
  std::optional<Tensor> initial_state = {};  // [batch, heads, key_dim, value_dim]
  std::optional<Tensor> seq_idx = {};        // [batch or 1, time]: see mamba.h
  int64_t chunk_size = 64;                   // how many tokens are multiplied at once
};

// All tokens, with gradients. -> y like v; S after the last token, float32
std::tuple<Tensor, Tensor> gated_delta_rule(const GatedDeltaInputs& inputs);

// One token, time 1: `state`, float32, is updated. -> y like v
Tensor gated_delta_step(const GatedDeltaInputs& inputs, const Tensor& state);

}  // namespace hotswap
