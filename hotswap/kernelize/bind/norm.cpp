// rms_norm/1, add_rms_norm/1, layer_norm/1
#include "hotswap/layers/norm.h"

#include "hotswap/kernelize/bind/regular.h"

namespace hotswap::binding {
std::vector<Contract> norm_contracts() {
  return {
      {"rms_norm/1",
       {{"forward", "(Tensor x, Tensor weight, float eps, float offset, str casting) -> Tensor"},
        {"forward_train", "(Tensor x, Tensor weight, float eps, float offset, str casting) -> (Tensor y, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float offset, str casting) -> "
         "(Tensor dx, Tensor dweight)"}},
       bind_regular<RmsNormForward>},
      {"add_rms_norm/1",
       {{"forward",
         "(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str casting) -> (Tensor y, Tensor h)"},
        {"forward_train",
         "(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str casting) -> "
         "(Tensor y, Tensor h, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor dh, Tensor h, Tensor weight, Tensor rstd, float offset, str casting) -> "
         "(Tensor dx_and_residual, Tensor dweight)"}},
       bind_regular<AddRmsNormForward>},
      {"layer_norm/1",
       {{"forward", "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor"},
        {"forward_train", "(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor y, Tensor mean, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> "
         "(Tensor dx, Tensor dweight, Tensor dbias)"}},
       bind_regular<LayerNormForward>},
  };
}

}  // namespace hotswap::binding
