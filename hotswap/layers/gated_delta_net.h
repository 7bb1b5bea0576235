// Qwen3-Next's mixer: a short convolution over queries, keys and values, the gated delta rule, and a norm of each head
// before its gate.
#pragma once

#include <memory>

#include "hotswap/layers/gated_delta_rule.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/mamba2_mixer.h"
#include "hotswap/layers/mamba_parts.h"

namespace hotswap {

struct GatedDeltaNetOptions {
  int64_t layer = 0;  // its index in the cache
  int64_t hidden_size = 0;
  int64_t key_heads = 0, key_dim = 0;  // of queries, too
  int64_t heads = 0, value_dim = 0;
  int64_t conv_width = 4;
  double norm_eps = 1e-6;
  // What reads the input: two projections, in_proj_qkvz and in_proj_ba, which have all parts of a key head side by
  // side; else one for each of queries, keys and values in total, gate, beta and decay.
  bool packed = true;
};

class GatedDeltaNet : public TokenMixer {
 public:
  explicit GatedDeltaNet(const GatedDeltaNetOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t /*reserve*/) const override {
    return std::make_unique<RecurrentLayer>();
  }

 private:
  struct Projected {
    Tensor qkv;   // [batch, time, channels]
    Tensor gate;  // [batch, time, heads, value_dim]
    Tensor b, a;  // [batch, time, heads]: what makes beta and the decay
  };
  Projected projected(const Tensor& x) const;
  GatedDeltaInputs inputs(const Projected& in, const Tensor& mixed) const;  // mixed: qkv after the convolution
  GatedDeltaNetOptions options_;
  Tensor dt_bias_, A_log_;  // [heads]
  CausalConv1d conv1d_;
  std::unique_ptr<Linear> qkvz_, ba_;        // packed
  std::unique_ptr<Linear> qkv_, z_, b_, a_;  // or not
  GatedRMSNorm norm_;
  Linear out_proj_;
};

}  // namespace hotswap
