#include "hotswap/layers/mlp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

#include <array>

#include "hotswap/layers/linked.h"

namespace hotswap {

GatedMLP::GatedMLP(const GatedMLPOptions& o)
    : gate_proj(o.dim, o.hidden, o.bias),
      up_proj(o.dim, o.hidden, o.bias),
      down_proj(o.hidden, o.dim, o.bias),
      act_fn(activation_kind(o.activation, "hidden_act")) {
  own("gate_proj", gate_proj);
  own("up_proj", up_proj);
  own("down_proj", down_proj);
  own("act_fn", act_fn);
  const std::string layer = activation_kind(o.activation, "hidden_act").layer;
  if (layer != "SiLU" && layer != "GeluTanh") return;
  gated_ = std::make_unique<Slot<GatedForward>>(
      this, layer == "SiLU" ? "SwiGLUMLP" : "GeGLUMLP", "gated_mlp/1",
      [this](const Tensor& gate, const Tensor& up) { return at::mul(act_fn.forward(gate), up); });
}

Tensor GatedMLP::forward(const Tensor& x) const {
  if (trains_whole(x)) return gated_->op<TrainWhole>()(x, gate_proj.data(), up_proj.data(), down_proj.data());
  if (gated_ && gated_->bound() && !at::GradMode::is_enabled() && x.dim() == 3 && x.size(1) == 1) {  // a step's
    const std::vector<Tensor> made = Linear::products({&gate_proj, &up_proj}, x);
    return down_proj.forward((*gated_)(made[0], made[1]));
  }
  LinkedProjections linked(gated_ && gated_->bound());
  const Tensor gate = linked(gate_proj, x);  // [..., hidden]
  const Tensor up = linked(up_proj, x);      // [..., hidden]
  return down_proj.forward(gated_ ? (*gated_)(gate, up) : at::mul(act_fn.forward(gate), up));
}

// Where every weight learns: one that does not has no use for act(gate) * up, or for x.
bool GatedMLP::trains_whole(const Tensor& x) const {
  if (!gated_ || !at::GradMode::is_enabled() || !gated_->op<TrainWhole>()) return false;
  if (!all_plain({&gate_proj, &up_proj, &down_proj})) return false;
  const std::array<const Linear*, 3> projections = {&gate_proj, &up_proj, &down_proj};
  return std::all_of(projections.begin(), projections.end(), [&](const Linear* l) {
    return !l->bias.defined() && l->data().requires_grad() && l->trains_by_torch(x.scalar_type());
  });
}

}  // namespace hotswap
