// What Mamba's mixers differ in.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace hotswap {

// Of fresh weights: dt is drawn between min and max on a logarithmic scale, and no smaller than floor.
struct TimeStepInit {
  double min = 0.001, max = 0.1, floor = 1e-4;
  double scale = 1;             // of Mamba-1's projection of dt
  bool constant = false;        // that projection is not drawn
  bool is_special = true;       // false: dt's bias is 0 and projections are drawn as everywhere (Jamba)
  bool special_output = false;  // then, too, the projection out of the mixer (Nemotron-H)
  bool draws_bias = true;       // of Mamba-2's dt; false: it is 1 (Bamba)
  int64_t rescaled_by = 1;      // layers whose roots divide the output projection
};

struct MambaOptions {
  int64_t layer = 0;  // its place in the cache
  int64_t hidden_size = 0;
  int64_t channels = 0;  // that the recurrence runs on
  int64_t state = 0;     // elements that each of them remembers
  int64_t conv_width = 4;
  bool bias = false, conv_bias = true;
  TimeStepInit time_step = {};

  // Mamba-1
  int64_t rank = 0;                               // of the projection of dt
  std::optional<double> norm_eps = std::nullopt;  // dt, B and C are normalised before they are used
  bool weighted_norms = false;                    // with weights: dt_layernorm, b_layernorm, c_layernorm

  // Mamba-2
  int64_t heads = 0, head_dim = 0, groups = 1, chunk_size = 256;
  double dt_min = 0, dt_max = 0;  // dt is clamped between them
  double gated_norm_eps = 1e-5;
  bool gated_norm = true;                               // false: only a gate, no norm
  bool norm_before_gate = false;                        // the gate comes last
  std::optional<bool> output_bias = std::nullopt;       // of the projection out; none: as `bias`
  double input_multiplier = 1;                          // of what goes in
  std::array<double, 5> multipliers = {1, 1, 1, 1, 1};  // of the projection's gate, x, B, C and dt
};

}  // namespace hotswap
