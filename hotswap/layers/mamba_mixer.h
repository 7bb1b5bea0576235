// Mamba's mixer: a gated recurrence whose step, input and output are projected from what they work on. Falcon Mamba and
// Jamba normalise these three.
#pragma once

#include <memory>

#include "hotswap/layers/linear.h"
#include "hotswap/layers/mamba_parts.h"
#include "hotswap/layers/norm.h"

namespace hotswap {

class MambaMixer : public TokenMixer {
 public:
  explicit MambaMixer(const MambaOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t /*reserve*/) const override {
    return std::make_unique<RecurrentLayer>();
  }

 private:
  struct Selected {
    Tensor dt, B, C;  // [batch, channels, time] without its bias, [batch, state, time] twice
  };
  struct Norm {  // with a weight, without one, or neither
    std::unique_ptr<RMSNorm> weighted;
    std::unique_ptr<WeightlessRMSNorm> weightless;
    Tensor operator()(const Tensor& x) const;
  };
  Selected selected(const Tensor& x) const;  // [batch, time, channels]
  MambaOptions options_;
  Linear in_proj_, x_proj_, dt_proj_, out_proj_;
  CausalConv1d conv1d_;
  Tensor A_log_;  // [channels, state]
  Tensor D_;      // [channels]
  Norm dt_norm_, b_norm_, c_norm_;
  Slot<SelectiveScanForward> scan_{this, "selective_scan_fn", "selective_scan/1", stock::selective_scan};
  Slot<StateUpdateForward> update_{this, "selective_state_update", "selective_state_update/1",
                                   stock::selective_state_update};
};

}  // namespace hotswap
