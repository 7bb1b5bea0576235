// A Slot is the one place of a layer where another forward may run. Empty, it calls the stock forward in plain ATen;
// bound, it calls the package's op, autograd attached by kernelize/. Weights are arguments, never held here, so
// unbinding is exact.
//
//   Slot<RmsNormForward> forward_{this, "RMSNorm", "rms_norm/1", stock::rms_norm};
//   return forward_(x, weight, eps_, offset_, casting_);
//
// A kernel may serve more than the forward: the optional roles of the slot's contract. Each is a type with kRole, its
// name, and Signature (Argmax in linear.h); op<Argmax>() is null where the kernel has no such op.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotswap/layers/module.h"

namespace hotswap {

// What a slot needs of a kernel beside its contract and its tensors' dtypes; a kernel that does not claim it stays out,
// with the reason in the report. Names are those that the contract knows (kernelize/contract/contract.h).
struct SlotNeeds {
  std::vector<std::string> features;                    // "window"
  std::map<std::string, std::vector<int64_t>> numbers;  // "head_dims" -> {64}, or the pair {192, 128}
  std::vector<std::string> weights = {};                // formats of the weights that it multiplies by: "q8_0"
};

template <typename Signature>
class Slot;

class SlotBase {
 public:
  // What a layer multiplies by, under the names of its contract's arguments, and as what, where an op of the contract
  // takes formats.
  struct Weights {
    std::map<std::string, Tensor> tensors;
    std::string formats = {};
    const Tensor& at(const std::string& name) const { return tensors.at(name); }
  };

  SlotBase(Module* owner, std::string layer, std::string contract, SlotNeeds needs = {});
  virtual ~SlotBase() = default;
  SlotBase(const SlotBase&) = delete;
  SlotBase& operator=(const SlotBase&) = delete;

  const std::string& layer() const { return layer_; }        // the name in the kernel mapping: "RMSNorm"
  const std::string& contract() const { return contract_; }  // "rms_norm/1"
  const SlotNeeds& needs() const { return needs_; }
  void set_needs(SlotNeeds needs) { needs_ = std::move(needs); }
  virtual bool bound() const = 0;
  // This slot by the type of its forward; null where that is another.
  template <typename Signature>
  Slot<Signature>* as();
  virtual void unbind() {
    ops_.clear();
    claims_.clear();
  }

  // Of a layer with several slots, such as one a weight format, those that its tensors make no use of are neither
  // bound nor in the report.
  bool in_use() const { return in_use_; }
  void set_in_use(bool on) {
    if (!on) unbind();
    in_use_ = on;
  }

  template <typename Role>
  const std::function<typename Role::Signature>& op() const {
    static const std::function<typename Role::Signature> none;
    for (const auto& [role, function] : ops_) {
      if (role == Role::kRole) return *std::any_cast<std::function<typename Role::Signature>>(&function);
    }
    return none;
  }
  template <typename Role>
  void bind_op(std::function<typename Role::Signature> function) {  // in place of an earlier one
    std::erase_if(ops_, [](const auto& op) { return op.first == Role::kRole; });
    ops_.emplace_back(Role::kRole, std::move(function));
  }
  // Of a layer whose kernels decide by its weights how many rows they serve: `weights` returns them as they are then.
  // Empty: a slot outside of a model.
  void set_weights(std::function<Weights()> weights) { weights_ = std::move(weights); }
  bool has_weights() const { return static_cast<bool>(weights_); }
  Weights weights() const { return weights_(); }
  // Does what runs here wait for the device in the middle of a step? The stock forward where the layer says so, a
  // kernel where its package does.
  // Which calls of the layer never come to the slot, for reports; empty: none.
  void set_passes_by(std::string calls) { passes_by_ = std::move(calls); }
  const std::string& passes_by() const { return passes_by_; }
  bool needs_host_sync() const { return bound() ? kernel_syncs_ : stock_syncs_; }
  void set_stock_needs_host_sync() { stock_syncs_ = true; }
  void set_kernel_needs_host_sync(bool syncs) { kernel_syncs_ = syncs; }  // after binding
  // What the bound kernel claims of its contract's features, as far as the layer asks: "torch_products".
  bool claims(const std::string& feature) const { return claims_.contains(feature); }
  void set_claims(std::set<std::string> features) { claims_ = std::move(features); }

 private:
  std::string layer_, contract_;
  SlotNeeds needs_;
  std::string passes_by_;
  bool in_use_ = true;
  bool stock_syncs_ = false, kernel_syncs_ = false;
  std::vector<std::pair<std::string_view, std::any>> ops_;  // few: looked through
  std::set<std::string> claims_;
  std::function<Weights()> weights_;
};

template <typename R, typename... Args>
class Slot<R(Args...)> : public SlotBase {
 public:
  using Forward = std::function<R(Args...)>;
  Slot(Module* owner, std::string layer, std::string contract, Forward stock, SlotNeeds needs = {})
      : SlotBase(owner, std::move(layer), std::move(contract), std::move(needs)), stock_(std::move(stock)) {}

  R operator()(Args... args) const { return bound_ ? bound_(args...) : stock_(args...); }
  void bind(Forward forward) {  // and after it the other roles
    SlotBase::unbind();
    bound_ = std::move(forward);
  }
  void set_stock(Forward stock) { stock_ = std::move(stock); }  // where a layer has several: attention
  bool bound() const override { return static_cast<bool>(bound_); }
  void unbind() override {
    SlotBase::unbind();
    bound_ = nullptr;
  }

 private:
  Forward stock_, bound_;
};

template <typename Signature>
Slot<Signature>* SlotBase::as() {
  return dynamic_cast<Slot<Signature>*>(this);
}

}  // namespace hotswap
