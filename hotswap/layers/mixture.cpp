#include "hotswap/layers/mixture.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

#include "hotswap/layers/dropout.h"
#include "hotswap/layers/whole_vectors.h"

namespace hotswap {

Mixture::Mixture(const MixtureOptions& o)
    : jitter_(o.jitter),
      jitters_(o.jitters),
      router_(o.router),
      experts_({.experts = o.router.experts, .dim = o.router.dim, .hidden = o.hidden, .bias = o.bias}, o.experts,
               o.layer) {
  own(o.router_name, router_);
  own("experts", experts_);
  if (o.shared_hidden == 0) return;
  shared_ = std::make_unique<GatedMLP>(
      GatedMLPOptions{.dim = o.router.dim, .hidden = o.shared_hidden, .activation = o.shared_activation});
  own(o.shared_name, *shared_);
  if (!o.shared_gate) return;
  shared_gate_ = std::make_unique<Linear>(o.router.dim, 1, /*with_bias=*/false);
  own("shared_expert_gate", *shared_gate_);
}

Tensor Mixture::forward(const Tensor& x, const ForwardContext& context) const {
  Tensor tokens = x.reshape({-1, x.size(-1)});
  for (int64_t i = 0; i < jitters_ && training() && jitter_ > 0; ++i) {
    tokens = at::mul(tokens, seeded_uniform(tokens, 1 - jitter_, 1 + jitter_));
  }
  const Router::Result routed = router_.route(tokens);
  if (context.router_logits != nullptr) context.router_logits->push_back(routed.logits);
  Tensor y = experts_.forward(tokens, routed.routing);
  if (shared_) {
    Tensor shared = shared_->forward(tokens);
    if (shared_gate_) shared = at::mul(row_sigmoid(shared_gate_->forward(tokens)), shared);
    y = at::add(y, shared);
  }
  return y.view(x.sizes());
}

}  // namespace hotswap
