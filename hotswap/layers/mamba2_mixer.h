// Mamba-2's mixer: step, input and output of the recurrence come straight from the input's projection, heads share
// them, and what comes out is normalised behind its gate.
#pragma once

#include "hotswap/layers/linear.h"
#include "hotswap/layers/mamba_parts.h"

namespace hotswap {

class GatedRMSNorm : public Module {
 public:
  GatedRMSNorm(int64_t dim, int64_t group_size, double eps) : group_size_(group_size), eps_(eps) {
    own("weight", weight, {dim}, Init::constant(1));
  }
  // Of each group of channels by itself, behind the gate. mamba-ssm trains and computes it so, and transformers since
  // 5.24; before, transformers took the mean over all groups, which is another model where there are several.
  Tensor forward(const Tensor& x, const Tensor& gate) const {
    return forward_(x, gate, weight, eps_, group_size_, /*norm_before_gate=*/false);
  }
  Tensor weight;  // [dim]

 private:
  int64_t group_size_;
  double eps_;
  Slot<GatedRmsNormForward> forward_{this, "MambaRMSNormGated", "gated_rms_norm/1", stock::gated_rms_norm};
};

class Mamba2Mixer : public TokenMixer {
 public:
  explicit Mamba2Mixer(const MambaOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t /*reserve*/) const override {
    return std::make_unique<RecurrentLayer>();
  }

 private:
  // What the convolution gave, and dt: [batch, time, ...] -> [batch, time, channels]
  Tensor scanned(const Tensor& xBC, const Tensor& dt, const ForwardContext& context, const Tensor& state) const;
  Tensor stepped(const Tensor& xBC, const Tensor& dt, const Tensor& state) const;  // the same of one token
  MambaOptions options_;
  Linear in_proj_, out_proj_;
  CausalConv1d conv1d_;
  GatedRMSNorm norm_;
  Tensor dt_bias_, A_log_, D_;  // [heads]
  Slot<SsdForward> scan_{this, "mamba_chunk_scan_combined", "ssd/1", stock::ssd};
  Slot<StateUpdateForward> update_{this, "selective_state_update", "selective_state_update/1",
                                   stock::selective_state_update};
};

}  // namespace hotswap
