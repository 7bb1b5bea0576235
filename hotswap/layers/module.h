// A thin module: named tensors, children and slots. torch::nn::Module would do the naming too, but its header costs 9 s
// in every file that includes it; what a host needs of it fits here.
//
//   class RMSNorm : public Module {
//    public:
//     explicit RMSNorm(int64_t dim) { own("weight", weight, {dim}); }
//     Tensor weight;  // [dim]
//   };
//   class Block : public Module {
//    public:
//     Block() : norm(64) { own("norm", norm); }
//     RMSNorm norm;
//   };
//   block.each_tensor([](const std::string& name, Tensor& t) { ... });   // "norm.weight"
//
// Members are registered by address: modules are neither copied nor moved.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace hotswap {

using at::Tensor;
class SlotBase;

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  using TensorVisitor = std::function<void(const std::string& name, Tensor& tensor)>;
  using ModuleVisitor = std::function<void(const std::string& name, Module& module)>;
  using SlotVisitor = std::function<void(const std::string& module_name, SlotBase& slot)>;

  // In the order of registration, depth first; names are dotted paths below this module, "" for the module itself.
  // A tensor that is reachable by two names (a tied embedding) is visited once, under its first name.
  void each_tensor(const TensorVisitor& visit);
  void each_module(const ModuleVisitor& visit);
  void each_slot(const SlotVisitor& visit);

  std::vector<Tensor> parameters();
  void requires_grad(bool on);
  void to(at::ScalarType dtype, at::Device device);  // replaces every tensor; gradients are dropped
  // Sets the mode of this module and all below it, then calls on_mode_change() of this one.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }

 protected:
  // Registers a tensor of this shape, left uninitialised on the meta device: loading or init fills it.
  void own(std::string name, Tensor& tensor, at::IntArrayRef shape);
  void own(std::string name, Module& child) { children_.emplace_back(std::move(name), &child); }
  // A tensor that another module owns, under a second name: a tied output head.
  void share(std::string name, Tensor& tensor) { tensors_.emplace_back(std::move(name), &tensor); }
  virtual void on_mode_change() {}

 private:
  friend class SlotBase;
  std::vector<std::pair<std::string, Tensor*>> tensors_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<SlotBase*> slots_;
  bool training_ = true;  // as torch has it: a fresh module trains
};

}  // namespace hotswap
