#include "hotswap/layers/mlp.h"

#include <ATen/ops/mul.h>

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
  const Tensor gate = gate_proj.forward(x);  // [..., hidden]
  const Tensor up = up_proj.forward(x);      // [..., hidden]
  return down_proj.forward(gated_ ? (*gated_)(gate, up) : at::mul(act_fn.forward(gate), up));
}

}  // namespace hotswap
