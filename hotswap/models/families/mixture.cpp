#include "hotswap/models/families/mixture.h"

#include "hotswap/base/error.h"
#include "hotswap/models/families/llama.h"

namespace hotswap {

MixtureOptions mixture_options(const ModelConfig& c) {
  const MixtureConfig& m = c.mixture;
  return {.router = {.dim = c.hidden_size,
                     .experts = m.num_experts,
                     .top_k = m.num_experts_per_tok,
                     .renormalize = m.norm_topk_prob},
          .hidden = m.moe_intermediate_size,
          .experts = {.activation = gated_by(c.hidden_act, "hidden_act")},
          .jitter = m.router_jitter_noise,
          .shared_hidden = m.shared_expert_intermediate_size,
          .shared_activation = c.hidden_act};
}

std::unique_ptr<Block> mixture_block(const ModelConfig& c, std::unique_ptr<TokenMixer> attention,
                                     const MixtureOptions& mixture, int64_t layer, const char* name) {
  std::unique_ptr<FeedForward> part;
  if (c.mixture.sparse.at(layer)) {
    part = std::make_unique<Mixture>(mixture);
  } else {
    part = std::make_unique<GatedMLP>(mlp_options(c));
  }
  return std::make_unique<LlamaBlock>(c, std::move(attention), std::move(part), name);
}

std::unique_ptr<Block> mixture_block(const ModelConfig& c, const SelfAttentionOptions& attention,
                                     const MixtureOptions& mixture, int64_t layer, const char* name) {
  return mixture_block(c, std::make_unique<SelfAttention>(attention), mixture, layer, name);
}

TensorRules expert_rules(const ExpertNames& n) {
  const std::string one = cat("model.layers.*.", n.block, ".experts.*."),
                    all = cat("model.layers.*.", n.own_block, ".experts.");
  return {TensorRule::stack({cat(one, n.gate, ".weight"), cat(one, n.up, ".weight")}, all + "gate_up_proj"),
          TensorRule::stack({cat(one, n.down, ".weight")}, all + "down_proj")};
}

}  // namespace hotswap
