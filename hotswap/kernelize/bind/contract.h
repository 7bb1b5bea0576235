// The table of contracts: a named, versioned set of op schemas that a package may offer a layer through, the code that
// puts such ops into a Slot, and an example that proves and times it. A contract is one row in its family's file
// (norm.cpp); that has its example, too, and its binding where the schemas' names do not say enough (regular.h).
//
//   forward         inference: saves nothing
//   forward_train   also returns what backward needs
//   backward        gradients
//   ..._inplace     the result, or the gradient, takes the place of inputs; optional
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/result.h"

namespace hotswap {

class SlotBase;
class LayerOps;
struct Example;

struct ExampleSize {
  int64_t rows = 1024, dim = 1024;  // rows, or tokens, and their width: even
  int64_t out = 0;                  // the width that comes out of a projection; 0: what the contract takes
};

struct Contract {
  std::string name;                          // "rms_norm/1"
  std::map<std::string, std::string> roles;  // "forward" -> "(Tensor x, ...) -> Tensor"
  // Binds the layer's ops to a slot of this contract: below autograd where no gradient is asked for, else through an
  // autograd function of the host.
  void (*bind)(SlotBase& slot, const LayerOps& layer);
  // Fresh inputs of that size with the stock forward that they go through (example.h). A Reason where nothing says
  // which function the layer of that name computes.
  Result<Example> (*example)(const std::string& layer, const ExampleSize& size);
  // What `hotswap bench` measures: one size that fits the L2 of a core, one larger than the LLC.
  ExampleSize small = {.rows = 128}, large = {.rows = 32768};
  // What a layer of this contract may claim beside the capabilities that every layer has.
  std::set<std::string> features = {}, numbers = {};  // "window"; "head_dims"
  bool optional = false;  // where its slot is empty, all that the layer does goes through other slots
  // Where tensors decide: which calls of this slot the kernel serves, for the report; a Reason where it serves none.
  Result<std::string> (*serves)(const SlotBase& slot, const LayerOps& layer) = nullptr;
  bool steps_only = false;  // steps of generation alone reach its slot: in training there is nothing to serve
};

const Contract* find_contract(const std::string& name);  // null: unknown
std::vector<std::string> contract_names();

// The ops that serve one layer, as binding needs them. Kept for the life of the process, as packages are.
class LayerOps {
 public:
  LayerOps(std::string name, const Contract& contract, std::map<std::string, std::string> ops, bool trains)
      : name_(std::move(name)), contract_(contract), ops_(std::move(ops)), trains_(trains) {}
  virtual ~LayerOps() = default;
  const std::string& str() const { return name_; }  // "norm:RMSNorm"
  const Contract& contract() const { return contract_; }
  bool trains() const { return trains_; }
  virtual bool claims(const std::string& /*feature*/) const { return false; }
  // "<id>::rms_norm_fwd"; empty where the layer has no op in this role.
  std::string op(const std::string& role) const {
    const auto found = ops_.find(role);
    return found == ops_.end() ? "" : found->second;
  }

 private:
  std::string name_;
  const Contract& contract_;
  std::map<std::string, std::string> ops_;
  bool trains_;
};

}  // namespace hotswap
