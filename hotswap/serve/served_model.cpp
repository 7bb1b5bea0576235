#include "hotswap/serve/served_model.h"

namespace hotswap::serve {

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
