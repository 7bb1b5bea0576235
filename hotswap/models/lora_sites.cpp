#include "hotswap/models/lora_sites.h"

#include "hotswap/models/family.h"

namespace hotswap {

WholeName transformers_name(const CausalLM& model, const std::string& name) {
  const Family& family = model.family();
  const bool of_experts = cat(name, ".").find(".experts.") != std::string::npos;
  WholeName whole = whole_name(family.tensor_rules(model.config()), name);
  if (whole.name == name && !of_experts) whole.name = name_before(family.module_names(model.config()), name);
  return whole;
}

const Weight& LoraSite::weight() const {
  return embedding != nullptr ? embedding->weight : parts.begin()->second->weight;
}

int64_t LoraSite::in() const { return embedding != nullptr ? weight().rows() : weight().columns(); }

int64_t LoraSite::out() const {
  if (embedding != nullptr) return weight().columns();
  int64_t rows = 0;
  for (const auto& [part, linear] : parts) rows += linear->weight.rows();
  return rows;
}

const Adapter* LoraSite::adapter() const {
  const auto& adapter = embedding != nullptr ? embedding->adapter() : parts.begin()->second->adapter();
  return adapter ? &*adapter : nullptr;
}

LoraSites::LoraSites(CausalLM& model)
    : head(transformers_name(model, "lm_head").name), embedding(transformers_name(model, "model.embed_tokens").name) {
  model.each_module([&](const std::string& name, Module& module) {
    auto* linear = dynamic_cast<Linear*>(&module);
    auto* table = dynamic_cast<Embedding*>(&module);
    if (linear == nullptr && table == nullptr) return;
    const WholeName whole = transformers_name(model, name);
    LoraSite& site = all[whole.name];
    site.embedding = table;
    site.names[whole.part] = name;
    site.moves = whole.moves;
    if (linear != nullptr) site.parts[whole.part] = linear;
  });
}

bool LoraSites::targets(const LoraRules& rules, const std::string& module) const {
  return rules.targets({.name = module, .is_linear = all.at(module).embedding == nullptr, .is_head = module == head});
}

}  // namespace hotswap
