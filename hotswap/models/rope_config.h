// The rotary parameters of config.json: "rope_parameters" since transformers 5, "rope_scaling" beside "rope_theta"
// before; one set for all layers, or one for each type of layer.
#pragma once

#include <optional>

#include "hotswap/base/json.h"
#include "hotswap/layers/rope.h"

namespace hotswap {

// What families differ in where a key is absent.
struct RopeDefaults {
  double theta = 10000;
  // Given: sliding layers have a rotary embedding of their own, of this theta ("rope_local_base_freq" before
  // transformers 5).
  std::optional<double> sliding_theta = std::nullopt;
  bool may_be_partial = false;                   // partial_rotary_factor: of the beginning of each head alone
  double partial = 1;                            // that factor, where it is absent
  int64_t original_max_position_embeddings = 0;  // 0: what the scaling's own parameters say
};

struct ConfiguredRopes {
  RopeParameters all;                     // or of full layers alone
  std::optional<RopeParameters> sliding;  // of sliding layers
};

ConfiguredRopes read_ropes(const Json& config, int64_t head_dim, const RopeDefaults& defaults);

}  // namespace hotswap
