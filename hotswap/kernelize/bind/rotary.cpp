// rotary/1
#include "hotswap/layers/rotary.h"

#include "hotswap/kernelize/bind/regular.h"

namespace hotswap::binding {
std::vector<Contract> rotary_contracts() {
  const std::string tables = "Tensor cos, Tensor sin, int rotary_dim, bool interleaved)";
  return {{"rotary/1",
           {{"forward", "(Tensor q, Tensor k, " + tables + " -> (Tensor q, Tensor k)"},
            {"forward_train", "(Tensor q, Tensor k, " + tables + " -> (Tensor q, Tensor k)"},
            {"backward", "(Tensor dq, Tensor dk, " + tables + " -> (Tensor dq, Tensor dk)"},
            {"forward_inplace", optional_role("(Tensor(a!) q, Tensor(b!) k, " + tables + " -> ()")}},
           bind_regular<RotaryForward, Gradients::kRows>}};
}

}  // namespace hotswap::binding
