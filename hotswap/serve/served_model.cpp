#include "hotswap/serve/served_model.h"

#include <algorithm>

namespace hotswap::serve {

std::optional<ServedModel::Named> ServedModel::find(const std::string& name) const {
  if (std::find(names.begin(), names.end(), name) != names.end()) return Named{name};
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].name == name) return Named{name, static_cast<int64_t>(i)};
  }
  return std::nullopt;
}

std::vector<std::string> ServedModel::all_names() const {
  std::vector<std::string> all = names;
  for (const ServedAdapter& adapter : adapters) all.push_back(adapter.name);
  return all;
}

std::vector<int64_t> ServedModel::ends() const {
  const auto& configured = model->generation_config().eos_token_id;
  if (configured) return *configured;
  const auto& eos = tokenizer.special_ids().eos;
  return eos ? std::vector<int64_t>{*eos} : std::vector<int64_t>();
}

int64_t max_positions(const CausalLM& model) {
  const int64_t positions = model.config().rope_parameters.max_position_embeddings;
  return positions > 0 ? positions : model.config_json().get<int64_t>("max_position_embeddings", 0);
}

}  // namespace hotswap::serve
