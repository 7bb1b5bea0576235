// What config.json says of a mixture of experts, under one set of names: families have several.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

struct MixtureConfig {
  int64_t num_experts = 0, num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;            // of one expert
  int64_t shared_expert_intermediate_size = 0;  // of the part for all tokens; 0: none
  bool norm_topk_prob = false;                  // the weights of a token's experts sum to 1
  double router_jitter_noise = 0;
  int64_t n_group = 1, topk_group = 1;  // see RouterOptions, as the next
  double routed_scaling_factor = 1;
  double swiglu_alpha = 1, swiglu_limit = 0;   // gpt-oss's: see ExpertsOptions
  std::vector<bool> sparse;                    // which layers are mixtures, a layer each
  std::optional<double> router_aux_loss_coef;  // none: the family has no auxiliary loss
  bool output_router_logits = false;
};

struct MixtureKeys {
  const char* hidden = "moe_intermediate_size";  // of one expert
  std::optional<double> aux_loss_coef = 0.001;   // where router_aux_loss_coef is absent; none: no such loss
  std::optional<int64_t> num_experts_per_tok = std::nullopt;  // where that key is absent; none: it must be there
};

// Counts, sizes and the auxiliary loss; every layer is a mixture. The number of experts stands under one of three
// names: transformers takes each for the others. An absent required key is an Error that names it.
MixtureConfig read_mixture_config(int64_t layers, const Json& json, const MixtureKeys& keys = {});
// Qwen's: decoder_sparse_step and mlp_only_layers.
void read_sparse_layers(MixtureConfig& mixture, const Json& json);

}  // namespace hotswap
