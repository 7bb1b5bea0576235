// activation/1, act_and_mul/1
#include "hotswap/layers/activation.h"

#include "hotswap/kernelize/bind/regular.h"

namespace hotswap::binding {
std::vector<Contract> activation_contracts() {
  const std::map<std::string, Role> roles = {{"forward", "(Tensor x) -> Tensor y"},
                                             {"forward_train", "(Tensor x) -> Tensor y"},
                                             {"backward", "(Tensor dy, Tensor x) -> Tensor dx"}};
  return {{"activation/1", roles, bind_regular<ActivationForward>},
          {"act_and_mul/1", roles, bind_regular<ActivationForward>}};
}

}  // namespace hotswap::binding
