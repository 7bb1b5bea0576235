// The table of contracts: a named, versioned set of op schemas that a package may offer a layer through, and the code
// that puts such ops into a Slot. Adding a contract is one row in contracts.cpp (and its bind function, where no
// existing one has the signature).
//
//   forward         inference: saves nothing
//   forward_train   also returns what backward needs
//   backward        gradients
//   ..._inplace     the result, or the gradient for dloss = 1, takes the place of the inputs; optional
#pragma once

#include <map>
#include <string>
#include <vector>

namespace hotswap {

class SlotBase;
class PackageLayer;

struct Contract {
  std::string name;                          // "rms_norm/1"
  std::map<std::string, std::string> roles;  // "forward" -> "(Tensor x, ...) -> Tensor"
  // Binds the layer's ops to a slot of this contract: below autograd where no gradient is asked for, else through an
  // autograd function of the host.
  void (*bind)(SlotBase& slot, const PackageLayer& layer);
};

const Contract* find_contract(const std::string& name);  // null: unknown
std::vector<std::string> contract_names();

}  // namespace hotswap
