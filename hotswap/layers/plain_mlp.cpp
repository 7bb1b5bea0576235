#include "hotswap/layers/plain_mlp.h"

namespace hotswap {

PlainMLP::PlainMLP(const GatedMLPOptions& o)
    : up_proj(o.dim, o.hidden, o.bias),
      down_proj(o.hidden, o.dim, o.bias),
      act_fn(activation_kind(o.activation, "hidden_act")) {
  own("up_proj", up_proj);
  own("down_proj", down_proj);
  own("act_fn", act_fn);
}

}  // namespace hotswap
