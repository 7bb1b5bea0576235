#include "hotswap/layers/mlp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

#include <array>

#include "hotswap/layers/linked.h"
#include "hotswap/layers/multiplied.h"

namespace hotswap {

GatedMLP::GatedMLP(const GatedMLPOptions& o)
    : gate_proj(o.dim, o.hidden, o.bias),
      up_proj(o.dim, o.hidden, o.bias),
      down_proj(o.hidden, o.dim, o.bias),
      act_fn(activation_kind(o.activation, "hidden_act")),
      gate_multiplier_(o.gate_multiplier),
      down_multiplier_(o.down_multiplier) {
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
    return down(made[0], made[1]);
  }
  LinkedProjections linked(gated_ && gated_->bound());
  const Tensor gate = linked(gate_proj, x);  // [..., hidden]
  const Tensor up = linked(up_proj, x);      // [..., hidden]
  return down(gate, up);
}

Tensor GatedMLP::down(const Tensor& gate, const Tensor& up) const {
  const Tensor scaled = multiplied(gate, gate_multiplier_);
  const Tensor hidden = gated_ ? (*gated_)(scaled, up) : at::mul(act_fn.forward(scaled), up);
  return multiplied(down_proj.forward(hidden), down_multiplier_);
}

// Where every weight learns: one that does not has no use for act(gate) * up, or for x.
bool GatedMLP::trains_whole(const Tensor& x) const {
  if (!gated_ || !at::GradMode::is_enabled() || !gated_->op<TrainWhole>()) return false;
  if (gate_multiplier_ != 1 || down_multiplier_ != 1) return false;
  if (!all_plain({&gate_proj, &up_proj, &down_proj})) return false;
  const std::array<const Linear*, 3> projections = {&gate_proj, &up_proj, &down_proj};
  return std::all_of(projections.begin(), projections.end(), [&](const Linear* l) {
    return !l->bias.defined() && l->data().requires_grad() && l->trains_by_torch(x.scalar_type());
  });
}

}  // namespace hotswap
