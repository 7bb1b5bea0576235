// A thin module: named tensors, children and slots. torch::nn::Module would do the naming too, but its header costs 9 s
// in every file that includes it; what a host needs of it fits here.
//
//   class RMSNorm : public Module {
//    public:
//     explicit RMSNorm(int64_t dim) { own("weight", weight, {dim}, Init::constant(1)); }
//     Tensor weight;  // [dim]
//   };
//   class Block : public Module {
//    public:
//     Block() : norm(64) { own("norm", norm); }
//     RMSNorm norm;
//   };
//   void clear(Block& block) { block.each_tensor([](const std::string& name, Tensor& t) { t.zero_(); }); }
//
// Members are registered by address: modules are neither copied nor moved.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hotswap {

using at::Tensor;

class SlotBase;
struct Weight;

// What a fresh tensor holds before any training. The spread of the normal one is the model's (initializer_range).
struct Init {
  using Draw = std::function<void(Tensor& fresh, const at::Generator& generator)>;  // fresh: float32
  static Init normal() { return {}; }
  static Init constant(double value) { return {value}; }
  static Init drawn(Draw draw) { return {std::nullopt, std::move(draw)}; }
  static Init uniform(double bound);           // between -bound and bound
  std::optional<double> value = std::nullopt;  // none: drawn
  Draw draw = nullptr;                         // by this; null: normal
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  using TensorVisitor = std::function<void(const std::string& name, Tensor& tensor)>;
  using WeightVisitor = std::function<void(const std::string& name, Weight& weight)>;
  using InitVisitor = std::function<void(Tensor& tensor, const Init& init)>;
  using ModuleVisitor = std::function<void(const std::string& name, Module& module)>;
  using SlotVisitor = std::function<void(const std::string& module_name, SlotBase& slot)>;

  // In the order of registration, depth first; names are dotted paths below this module, "" for the module itself.
  // A tensor that is reachable by two names (a tied embedding) is visited once, under its first name.
  void each_tensor(const TensorVisitor& visit);
  void each_parameter(const TensorVisitor& visit);  // without buffers
  // The weights among them, under their data's names; a tied one once.
  void each_weight(const WeightVisitor& visit);
  void each_init(const InitVisitor& visit);  // in the order of each_tensor
  void each_module(const ModuleVisitor& visit);
  void each_slot(const SlotVisitor& visit);

  std::vector<Tensor> parameters();
  void requires_grad(bool on);  // of parameters of floating point, plain weights among them
  // Replaces every tensor, buffers and encoded weights in their own types; gradients are dropped.
  void to(at::ScalarType dtype, at::Device device);
  // Sets the mode of this module and all below it, then calls on_mode_change() of this one.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  // Of this module and all below it: to be called where tensors were replaced by others of another kind.
  void tensors_changed();

 protected:
  // Registers a parameter of this shape, left uninitialised on the meta device: loading or init fills it.
  void own(std::string name, Tensor& tensor, at::IntArrayRef shape, Init init = Init::normal());
  // A weight whose format may change: data is the parameter.
  void own(std::string name, Weight& weight, at::IntArrayRef shape, Init init = Init::normal());
  // A tensor that is loaded and saved, and never trained.
  void own_buffer(std::string name, Tensor& tensor, at::IntArrayRef shape, at::ScalarType dtype, Init init);
  void own(std::string name, Module& child) { children_.emplace_back(std::move(name), &child); }
  // A tensor that another module owns, under a second name: a tied output head.
  void share(std::string name, Tensor& tensor) { tensors_.push_back({std::move(name), &tensor, Init::normal()}); }
  void share(std::string name, Weight& weight);
  virtual void on_mode_change() {}
  virtual void on_tensors_changed() {}
  virtual void on_moved(at::Device /*device*/) {}  // to() was called; for tensors that are no parameters

 private:
  friend class SlotBase;
  struct Owned {
    std::string name;
    Tensor* tensor;
    Init init;
    bool is_buffer = false;
    Weight* weight = nullptr;  // whose data it is
    bool encoded() const;
  };
  void each_owned(const std::function<void(const std::string& name, Owned& owned)>& visit);
  std::vector<Owned> tensors_;
  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<SlotBase*> slots_;
  bool training_ = true;  // as torch has it: a fresh module trains
};

}  // namespace hotswap
