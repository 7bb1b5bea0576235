// A mixture of experts as a layer's feed-forward part: a router, the experts, and what every token goes through beside.
#pragma once

#include <memory>

#include "hotswap/layers/mlp.h"
#include "hotswap/layers/router.h"

namespace hotswap {

struct MixtureOptions {
  RouterOptions router;
  int64_t hidden;  // of one expert
  ExpertsOptions experts = {};
  bool bias = false;                 // of the experts
  std::string layer = "Experts";     // the experts' name in a kernel mapping
  std::string router_name = "gate";  // of tensors in a checkpoint: mlp.gate.weight
  double jitter = 0;                 // in training tokens are multiplied by values in [1 - jitter, 1 + jitter]
  int64_t jitters = 1;               // how often

  int64_t shared_hidden = 0;  // of the part for all tokens; 0: none
  std::string shared_activation = "silu", shared_name = "shared_expert";
  bool shared_gate = false;  // a Linear "shared_expert_gate" whose sigmoid multiplies it
};

class Mixture : public FeedForward {
 public:
  explicit Mixture(const MixtureOptions& options);
  // Leaves the router's logits, [batch * time, experts], with context.router_logits.
  Tensor forward(const Tensor& x, const ForwardContext& context) const override;  // [batch, time, dim] -> the same

 private:
  double jitter_;
  int64_t jitters_;
  Router router_;
  Experts experts_;
  std::unique_ptr<GatedMLP> shared_;
  std::unique_ptr<Linear> shared_gate_;
};

}  // namespace hotswap
