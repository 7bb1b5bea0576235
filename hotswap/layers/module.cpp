#include "hotswap/layers/module.h"

#include <ATen/ops/empty.h>

#include <set>

#include "hotswap/layers/slot.h"

namespace hotswap {
namespace {

std::string below(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

}  // namespace

void Module::own(std::string name, Tensor& tensor, at::IntArrayRef shape) {
  tensor = at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  tensors_.emplace_back(std::move(name), &tensor);
}

void Module::each_module(const ModuleVisitor& visit) {
  const std::function<void(const std::string&, Module&)> walk = [&](const std::string& name, Module& module) {
    visit(name, module);
    for (auto& [child_name, child] : module.children_) walk(below(name, child_name), *child);
  };
  walk("", *this);
}

void Module::each_tensor(const TensorVisitor& visit) {
  std::set<Tensor*> seen;
  each_module([&](const std::string& path, Module& module) {
    for (auto& [name, tensor] : module.tensors_) {
      if (seen.insert(tensor).second) visit(below(path, name), *tensor);
    }
  });
}

void Module::each_slot(const SlotVisitor& visit) {
  each_module([&](const std::string& path, Module& module) {
    for (SlotBase* slot : module.slots_) visit(path, *slot);
  });
}

std::vector<Tensor> Module::parameters() {
  std::vector<Tensor> result;
  each_tensor([&](const std::string&, Tensor& tensor) { result.push_back(tensor); });
  return result;
}

void Module::requires_grad(bool on) {
  each_tensor([&](const std::string&, Tensor& tensor) { tensor.set_requires_grad(on); });
}

void Module::to(at::ScalarType dtype, at::Device device) {
  each_tensor([&](const std::string&, Tensor& tensor) {
    const bool wants_grad = tensor.requires_grad();
    tensor = tensor.detach().to(at::TensorOptions().dtype(dtype).device(device));
    tensor.set_requires_grad(wants_grad);
  });
}

void Module::train(bool on) {
  each_module([&](const std::string&, Module& module) { module.training_ = on; });
  on_mode_change();
}

SlotBase::SlotBase(Module* owner, std::string layer, std::string contract, SlotNeeds needs)
    : layer_(std::move(layer)), contract_(std::move(contract)), needs_(std::move(needs)) {
  owner->slots_.push_back(this);
}

}  // namespace hotswap
