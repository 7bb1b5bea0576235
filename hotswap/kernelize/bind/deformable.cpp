// deformable_attention/1
#include "hotswap/layers/deformable.h"

#include "hotswap/kernelize/bind/regular.h"

namespace hotswap::binding {
std::vector<Contract> deformable_contracts() {
  const std::string inputs =
      "Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_locations, Tensor "
      "attention_weights)";
  return {{"deformable_attention/1",
           {{"forward", "(" + inputs + " -> Tensor y"},
            {"forward_train", "(" + inputs + " -> Tensor y"},
            {"backward",
             "(Tensor dy, " + inputs + " -> (Tensor dvalue, Tensor dsampling_locations, Tensor dattention_weights)"}},
           bind_regular<DeformableForward>}};
}

}  // namespace hotswap::binding
