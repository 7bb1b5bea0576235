// Mamba-2's mixer: step, input and output of the recurrence come straight from the input's projection, heads share
// them, and what comes out is normalised behind its gate.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "hotswap/layers/linear.h"
#include "hotswap/layers/mamba_parts.h"

namespace hotswap {

class GatedRMSNorm : public Module {
 public:
  GatedRMSNorm(int64_t dim, int64_t group_size, double eps, bool before_gate = false)
      : group_size_(group_size), eps_(eps), before_gate_(before_gate) {
    own("weight", weight, {dim}, Init::constant(1));
  }
  // Of each group of channels by itself. mamba-ssm trains and computes it so, and transformers since
  // 5.24; before, transformers took the mean over all groups, which is another model where there are several.
  Tensor forward(const Tensor& x, const Tensor& gate) const {
    return forward_(x, gate, weight, eps_, group_size_, before_gate_);
  }
  Tensor weight;  // [dim]

 private:
  int64_t group_size_;
  double eps_;
  bool before_gate_;
  Slot<GatedRmsNormForward> forward_{this, "MambaRMSNormGated", "gated_rms_norm/1", stock::gated_rms_norm};
};

// What the parts of a projection, one after the other, are multiplied by.
class PartMultipliers {
 public:
  explicit PartMultipliers(std::vector<std::pair<int64_t, double>> parts) : parts_(std::move(parts)) {}
  Tensor times(const Tensor& projected) const;  // [..., sum of the widths] -> the same

 private:
  std::vector<std::pair<int64_t, double>> parts_;  // widths, multipliers
  mutable std::mutex mutex_;
  mutable Tensor row_;  // [sum of the widths], in the dtype and on the device where it was last needed
};

class Mamba2Mixer : public TokenMixer {
 public:
  explicit Mamba2Mixer(const MambaOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t /*reserve*/) const override {
    return std::make_unique<RecurrentLayer>();
  }

 private:
  struct Projected {
    Tensor xBC;       // [batch, time, conv_channels]: what the convolution gave
    Tensor dt, gate;  // [batch, time, heads], [batch, time, channels]
  };
  // -> [batch, time, channels], after the norm or the gate
  Tensor scanned(const Projected& in, const ForwardContext& context, const Tensor& state) const;
  Tensor stepped(const Projected& in, const Tensor& state) const;  // the same of one token
  MambaOptions options_;
  Linear in_proj_, out_proj_;
  CausalConv1d conv1d_;
  std::unique_ptr<GatedRMSNorm> norm_;  // null: only the gate
  PartMultipliers multipliers_;
  Tensor dt_bias_, A_log_, D_;  // [heads]
  Slot<SsdForward> scan_{this, "mamba_chunk_scan_combined", "ssd/1", stock::ssd};
  Slot<StateUpdateForward> update_{this, "selective_state_update", "selective_state_update/1",
                                   stock::selective_state_update};
};

}  // namespace hotswap
