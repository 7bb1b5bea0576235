// The gated feed-forward part: down(act(gate(x)) * up(x)).
#pragma once

#include <memory>

#include "hotswap/layers/activation.h"
#include "hotswap/layers/forward_context.h"
#include "hotswap/layers/linear.h"

namespace hotswap {

// gated_mlp/1. gate, up: [..., dim] -> act(gate) * up
using GatedForward = Tensor(const Tensor& gate, const Tensor& up);

// The whole of a gated MLP without biases as one node of autograd's graph, which keeps gate and up and not act(gate) *
// up: backward makes that again in the pass that makes the gradients of gate and up.
using WholeGatedForward = Tensor(const Tensor& x, const Tensor& gate_weight, const Tensor& up_weight,
                                 const Tensor& down_weight);

// A role of gated_mlp/1 that the host makes where a kernel has backward_recompute.
struct TrainWhole {
  static constexpr std::string_view kRole = "train_whole";
  using Signature = WholeGatedForward;
};

struct GatedMLPOptions {
  int64_t dim, hidden;
  std::string activation;  // "silu"
  bool bias = false;
  double gate_multiplier = 1, down_multiplier = 1;  // of what gate and down give
};

// What a block does to each token for itself: one gated MLP, or a mixture of experts.
class FeedForward : public Module {
 public:
  virtual Tensor forward(const Tensor& x, const ForwardContext& context) const = 0;  // [batch, time, dim] -> the same
};

// With SiLU its slot is SwiGLUMLP, with tanh-GELU GeGLUMLP; other activations have no fused form. An empty slot
// multiplies and goes through the activation's own slot.
class GatedMLP : public FeedForward {
 public:
  explicit GatedMLP(const GatedMLPOptions& options);
  Tensor forward(const Tensor& x) const;  // [..., dim] -> [..., dim]
  Tensor forward(const Tensor& x, const ForwardContext&) const override { return forward(x); }
  Linear gate_proj, up_proj, down_proj;
  Activation act_fn;

 private:
  bool trains_whole(const Tensor& x) const;
  Tensor down(const Tensor& gate, const Tensor& up) const;  // of what both projections gave
  double gate_multiplier_, down_multiplier_;
  std::unique_ptr<Slot<GatedForward>> gated_;
};

}  // namespace hotswap
