// LFM2's mixer: a short convolution between two gates, all three of them made of the input.
#pragma once

#include <memory>

#include "hotswap/layers/linear.h"
#include "hotswap/layers/mamba_parts.h"

namespace hotswap {

struct ShortConvOptions {
  int64_t layer = 0;  // its index in the cache
  int64_t hidden_size = 0, width = 3;
  bool bias = false;  // of the convolution and both projections
};

class ShortConv : public TokenMixer {
 public:
  explicit ShortConv(const ShortConvOptions& options);
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t /*reserve*/) const override {
    return std::make_unique<RecurrentLayer>();
  }

 private:
  ShortConvOptions options_;
  CausalConv1d conv_;
  Linear in_proj_, out_proj_;
};

}  // namespace hotswap
