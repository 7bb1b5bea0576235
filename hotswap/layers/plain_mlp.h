// The feed-forward part of GPT-2's time: down(act(up(x))), without a gate.
#pragma once

#include "hotswap/layers/mlp.h"

namespace hotswap {

class PlainMLP : public FeedForward {
 public:
  explicit PlainMLP(const GatedMLPOptions& options);
  Tensor forward(const Tensor& x) const { return down_proj.forward(act_fn.forward(up_proj.forward(x))); }
  Tensor forward(const Tensor& x, const ForwardContext&) const override { return forward(x); }
  Linear up_proj, down_proj;
  Activation act_fn;
};

}  // namespace hotswap
