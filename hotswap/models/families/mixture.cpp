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

TensorRules gguf_expert_rules(const ExpertLayout& layout, const char* router, const char* block) {
  const std::string part = cat("model.layers.*.", block, "."), all = part + "experts.";
  TensorRules rules = {TensorRule::rename("blk.*.ffn_gate_inp", part + router),
                       // files from before April 2024 have each expert's
                       TensorRule::stack({"blk.*.ffn_gate.*.weight", "blk.*.ffn_up.*.weight"}, all + "gate_up_proj"),
                       TensorRule::stack({"blk.*.ffn_down.*.weight"}, all + "down_proj")};
  for (const auto& [end, own] : {std::pair(".weight", ""), std::pair(".bias", "_bias")}) {
    const auto stored = [&, end = end](const char* part) { return cat("blk.*.ffn_", part, "_exps", end); };
    rules.push_back(TensorRule::join({stored("gate"), stored("up")}, cat(all, "gate_up_proj", own), layout));
    rules.push_back(TensorRule::join({stored("down")}, cat(all, "down_proj", own), {.transposed = layout.transposed}));
  }
  rules.insert(rules.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return rules;
}

void gguf_extend_experts(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config,
                         const GgufExpertKeys& keys) {
  config[keys.experts] = file.at<int64_t>(prefix + "expert_count");
  config["num_experts_per_tok"] = file.at<int64_t>(prefix + "expert_used_count");
  const std::string hidden = prefix + "expert_feed_forward_length";
  if (file.has(hidden)) config[keys.hidden] = file.at<int64_t>(hidden);
}

}  // namespace hotswap
