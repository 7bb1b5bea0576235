// A contract: a named, versioned set of op schemas that a package may offer a layer through, and what a layer of it may
// claim. It is a row in its family's file of bind/ (norm.cpp), which has its binding, too, where the schemas' names do
// not define it (bind/regular.h). Its example, which proves and times the layer, is in the family's file of example/.
//
//   forward         inference: saves nothing
//   forward_train   also returns what backward needs
//   backward        gradients
//   ..._inplace     the result, or the gradient, takes the place of inputs; optional
//
// A role that is not optional is required: forward of every layer, the others of a layer that has a backward.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/result.h"

namespace hotswap {

class SlotBase;
class LayerOps;

// The weight formats that were called "packed" before a package could list them.
inline const std::set<std::string> kPackedFormats = {"q8_0", "q4_0", "q4_1"};

// An op that a layer may have.
struct Role {
  Role() = default;
  Role(const char* schema) : schema(schema) {}  // NOLINT(google-explicit-constructor)
  Role(std::string schema, bool optional = false)
      : schema(std::move(schema)), optional(optional) {}  // NOLINT(google-explicit-constructor)
  std::string schema;                                     // "(Tensor x, ...) -> Tensor"
  bool optional = false;
};
inline Role optional_role(std::string schema) { return {std::move(schema), /*optional=*/true}; }

struct Contract {
  std::string name;                   // "rms_norm/1"
  std::map<std::string, Role> roles;  // "forward"
  // Binds the layer's ops to a slot of this contract: below autograd where no gradient is asked for, else through an
  // autograd function of the host.
  void (*bind)(SlotBase& slot, const LayerOps& layer);
  // What a layer of this contract may claim beside the capabilities that every layer has.
  std::set<std::string> features = {}, numbers = {};  // "window"; "head_dims"
  bool optional = false;  // where its slot is empty, all that the layer does goes through other slots
  // Where tensors decide: which calls of this slot the kernel serves, for the report; a Reason where it serves none.
  Result<std::string> (*serves)(const SlotBase& slot, const LayerOps& layer) = nullptr;
  bool steps_only = false;  // steps of generation alone reach its slot: in training there is nothing to serve
  // The weight formats of a layer whose layers.json lists none.
  std::set<std::string> weights = {"plain"};
  // An older contract whose packages still serve the slots of this one; empty: its own.
  std::string serves_slots_of = {};
  const std::string& slots() const { return serves_slots_of.empty() ? name : serves_slots_of; }
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
