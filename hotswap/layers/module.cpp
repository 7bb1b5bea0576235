#include "hotswap/layers/module.h"

#include <ATen/ops/empty.h>

#include <set>

#include "hotswap/layers/weight.h"

namespace hotswap {
namespace {

std::string below(const std::string& parent, const std::string& name) {
  return parent.empty() || name.empty() ? parent + name : parent + "." + name;
}

}  // namespace

Init Init::uniform(double bound) {
  return drawn([bound](Tensor& fresh, const at::Generator& generator) { fresh.uniform_(-bound, bound, generator); });
}

void Module::own(std::string name, Tensor& tensor, at::IntArrayRef shape, Init init) {
  tensor = at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  tensors_.push_back({std::move(name), &tensor, init});
}

void Module::own(std::string name, Weight& weight, at::IntArrayRef shape, Init init) {
  own(std::move(name), weight.data, shape, std::move(init));
  tensors_.back().weight = &weight;
}

void Module::share(std::string name, Weight& weight) { share(std::move(name), weight.data); }

bool Module::Owned::encoded() const { return weight != nullptr && weight->encoded(); }

void Module::own_buffer(std::string name, Tensor& tensor, at::IntArrayRef shape, at::ScalarType dtype, Init init) {
  tensor = at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(dtype));
  tensors_.push_back({std::move(name), &tensor, init, /*is_buffer=*/true});
}

void Module::each_module(const ModuleVisitor& visit) {
  const std::function<void(const std::string&, Module&)> walk = [&](const std::string& name, Module& module) {
    visit(name, module);
    for (auto& [child_name, child] : module.children_) walk(below(name, child_name), *child);
  };
  walk("", *this);
}

void Module::each_owned(const std::function<void(const std::string&, Owned&)>& visit) {
  std::set<Tensor*> seen;
  each_module([&](const std::string& path, Module& module) {
    for (Owned& owned : module.tensors_) {
      if (seen.insert(owned.tensor).second) visit(below(path, owned.name), owned);
    }
  });
}

void Module::each_tensor(const TensorVisitor& visit) {
  each_owned([&](const std::string& name, Owned& owned) { visit(name, *owned.tensor); });
}

void Module::each_parameter(const TensorVisitor& visit) {
  each_owned([&](const std::string& name, Owned& owned) {
    if (!owned.is_buffer) visit(name, *owned.tensor);
  });
}

void Module::each_weight(const WeightVisitor& visit) {
  each_owned([&](const std::string& name, Owned& owned) {
    if (owned.weight != nullptr) visit(name, *owned.weight);
  });
}

void Module::each_init(const InitVisitor& visit) {
  each_owned([&](const std::string&, Owned& owned) { visit(*owned.tensor, owned.init); });
}

std::vector<Tensor> Module::parameters() {
  std::vector<Tensor> result;
  each_parameter([&](const std::string&, Tensor& tensor) { result.push_back(tensor); });
  return result;
}

void Module::requires_grad(bool on) {
  each_owned([&](const std::string&, Owned& owned) {
    const bool learns = !owned.is_buffer && owned.tensor->is_floating_point() && !owned.encoded();
    if (learns) owned.tensor->set_requires_grad(on);
  });
}

void Module::to(at::ScalarType dtype, at::Device device) {
  each_owned([&](const std::string&, Owned& owned) {
    Tensor& tensor = *owned.tensor;
    const bool wants_grad = tensor.requires_grad();
    const at::ScalarType wanted =
        owned.is_buffer || !tensor.is_floating_point() || owned.encoded() ? tensor.scalar_type() : dtype;
    tensor = tensor.detach().to(at::TensorOptions().dtype(wanted).device(device));
    tensor.set_requires_grad(wants_grad);
    if (!owned.encoded()) return;
    owned.weight->each_tensor([&](Tensor& part) { part = part.to(device); });
  });
  each_module([&](const std::string&, Module& module) { module.on_moved(device); });
}

void Module::train(bool on) {
  each_module([&](const std::string&, Module& module) { module.training_ = on; });
  on_mode_change();
}

void Module::tensors_changed() {
  each_module([](const std::string&, Module& module) { module.on_tensors_changed(); });
}

}  // namespace hotswap
