// A Slot is the one place of a layer where another forward may run. Empty, it calls the stock forward in plain ATen;
// bound, it calls the package's op, autograd attached by kernelize/. Weights are arguments, never held here, so
// unbinding is exact.
//
//   Slot<RmsNormForward> forward_{this, "RMSNorm", "rms_norm/1", stock::rms_norm};
//   return forward_(x, weight, eps_, offset_, casting_);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/layers/module.h"

namespace hotswap {

// What a slot needs of a kernel beside its contract and its tensors' dtypes; a kernel that does not claim it stays out,
// with the reason in the report. Names are those that the contract knows (kernelize/bind/contract.h).
struct SlotNeeds {
  std::vector<std::string> features;                    // "window"
  std::map<std::string, std::vector<int64_t>> numbers;  // "head_dims" -> {64}, or the pair {192, 128}
};

class SlotBase {
 public:
  SlotBase(Module* owner, std::string layer, std::string contract, SlotNeeds needs = {});
  virtual ~SlotBase() = default;
  SlotBase(const SlotBase&) = delete;
  SlotBase& operator=(const SlotBase&) = delete;

  const std::string& layer() const { return layer_; }        // the name in the kernel mapping: "RMSNorm"
  const std::string& contract() const { return contract_; }  // "rms_norm/1"
  const SlotNeeds& needs() const { return needs_; }
  void set_needs(SlotNeeds needs) { needs_ = std::move(needs); }
  virtual bool bound() const = 0;
  virtual void unbind() = 0;

 protected:
  void rename(std::string layer, std::string contract) {
    layer_ = std::move(layer);
    contract_ = std::move(contract);
  }

 private:
  std::string layer_, contract_;
  SlotNeeds needs_;
};

template <typename Signature>
class Slot;

template <typename R, typename... Args>
class Slot<R(Args...)> : public SlotBase {
 public:
  using Forward = std::function<R(Args...)>;
  Slot(Module* owner, std::string layer, std::string contract, Forward stock, SlotNeeds needs = {})
      : SlotBase(owner, std::move(layer), std::move(contract), std::move(needs)), stock_(std::move(stock)) {}

  R operator()(Args... args) const { return bound_ ? bound_(args...) : stock_(args...); }
  void bind(Forward forward) { bound_ = std::move(forward); }
  void set_stock(Forward stock) { stock_ = std::move(stock); }  // where a layer has several: attention
  // From now on another layer's slot of the same form, empty: where a layer's tensors are of another kind.
  void become(std::string layer, std::string contract, Forward stock) {
    if (this->layer() == layer) return;
    rename(std::move(layer), std::move(contract));
    stock_ = std::move(stock);
    bound_ = nullptr;
  }
  bool bound() const override { return static_cast<bool>(bound_); }
  void unbind() override { bound_ = nullptr; }

 private:
  Forward stock_, bound_;
};

}  // namespace hotswap
