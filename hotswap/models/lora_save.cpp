// A trained adapter as peft's files.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "hotswap/base/file.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/lora.h"
#include "hotswap/models/lora_sites.h"

namespace hotswap {
namespace {

// Of a module and of all its parts: they share A, and B and magnitudes have their rows one after another.
void add_site(const std::string& name, const LoraSite& site, TensorMap& to) {
  if (site.embedding != nullptr) {
    to.emplace_back(name + ".lora_embedding_A", site.adapter()->a.contiguous());
    to.emplace_back(name + ".lora_embedding_B", site.adapter()->b.contiguous());
    return;
  }
  std::vector<Tensor> b, magnitudes;
  for (const auto& [part, linear] : site.parts) {
    b.push_back(linear->adapter()->b);
    if (linear->adapter()->magnitude.defined()) magnitudes.push_back(linear->adapter()->magnitude);
  }
  to.emplace_back(name + ".lora_A.weight", site.adapter()->a.contiguous());
  to.emplace_back(name + ".lora_B.weight", site.as_stored(at::cat(b)));
  if (!magnitudes.empty()) to.emplace_back(name + ".lora_magnitude_vector", site.as_stored(at::cat(magnitudes)));
}

// peft wraps what has an adapter: the bias of such a layer is its base_layer's.
std::string peft_name(const LoraSites& sites, const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  const auto site = sites.all.find(tensor.substr(0, dot));
  const bool wrapped = site != sites.all.end() && site->second.adapter() != nullptr;
  return cat(kPeftPrefix, tensor.substr(0, dot), wrapped ? ".base_layer" : "", tensor.substr(dot));
}

}  // namespace

void AppliedLora::save(const std::filesystem::path& folder) const {
  const at::NoGradGuard no_grad;
  const LoraSites sites(*model_);
  TensorMap tensors;
  for (const auto& [module, site] : sites.all) {
    if (site.adapter() != nullptr) add_site(cat(kPeftPrefix, module), site, tensors);
  }
  TensorMap whole;
  model_->each_parameter([&](const std::string& name, Tensor& tensor) {
    if (tensor.requires_grad()) whole.emplace_back(name, tensor.detach());
  });
  for (const auto& [name, tensor] : in_checkpoint_terms(whole, model_->family().tensor_rules(model_->config()))) {
    tensors.emplace_back(peft_name(sites, name), tensor);
  }
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().cpu();
  save_safetensors(folder / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  write_file(folder / "adapter_config.json", config_.to_json().dump(2) + "\n");
}

}  // namespace hotswap
