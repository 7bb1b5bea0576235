#include "hotswap/models/mixture_config.h"

#include "hotswap/base/error.h"
#include "hotswap/models/config_numbers.h"

namespace hotswap {

namespace {

const char* experts_key(const Json& json) {
  for (const char* key : {"num_local_experts", "n_routed_experts", "num_experts"}) {
    if (json.has(key)) return key;
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "num_local_experts, n_routed_experts or num_experts",
               .got = cat("none of them in ", json.where()),
               .next = "add the one that the model's family has"});
}

}  // namespace

MixtureConfig read_mixture_config(int64_t layers, const Json& json, const MixtureKeys& keys) {
  MixtureConfig m;
  m.num_experts = positive(json, experts_key(json));
  m.num_experts_per_tok = positive(json, "num_experts_per_tok", keys.num_experts_per_tok);
  if (m.num_experts_per_tok > m.num_experts) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("at most ", m.num_experts, " for num_experts_per_tok"),
                 .got = cat(m.num_experts_per_tok, " in ", json.where()),
                 .next = "set num_experts_per_tok to at most the number of experts"});
  }
  m.moe_intermediate_size = positive(json, keys.hidden);
  m.sparse.assign(layers, true);
  if (keys.aux_loss_coef) m.router_aux_loss_coef = json.get<double>("router_aux_loss_coef", *keys.aux_loss_coef);
  m.output_router_logits = json.get<bool>("output_router_logits", false);
  return m;
}

void read_sparse_layers(MixtureConfig& m, const Json& json) {
  const int64_t step = positive(json, "decoder_sparse_step", 1);
  for (size_t i = 0; i < m.sparse.size(); ++i) m.sparse[i] = (static_cast<int64_t>(i) + 1) % step == 0;
  for (const int64_t layer : json.get<std::vector<int64_t>>("mlp_only_layers", {})) {
    if (layer >= 0 && layer < static_cast<int64_t>(m.sparse.size())) m.sparse[layer] = false;
  }
}

}  // namespace hotswap
