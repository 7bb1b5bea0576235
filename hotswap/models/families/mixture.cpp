#include "hotswap/models/families/mixture.h"

#include "hotswap/base/error.h"

namespace hotswap {

MixtureBlock::MixtureBlock(const ModelConfig& c, const SelfAttentionOptions& attention,
                           std::unique_ptr<Mixture> mixture, std::unique_ptr<GatedMLP> dense, const char* name)
    : self_attn_(attention),
      mixture_(std::move(mixture)),
      dense_(std::move(dense)),
      input_layernorm_(c.hidden_size, {.eps = c.rms_norm_eps}),
      post_attention_layernorm_(c.hidden_size, {.eps = c.rms_norm_eps}) {
  own("self_attn", self_attn_);
  if (mixture_) own(name, *mixture_);
  if (dense_) own(name, *dense_);
  own("input_layernorm", input_layernorm_);
  own("post_attention_layernorm", post_attention_layernorm_);
}

HiddenState MixtureBlock::forward(const HiddenState& in, const ForwardContext& context) {
  const auto [y, h] = in.residual.defined() ? input_layernorm_.forward(in.x, in.residual)
                                            : AddRMSNorm::Result{input_layernorm_.forward(in.x), in.x};
  const auto [z, residual] = post_attention_layernorm_.forward(self_attn_.forward(y, context), h);
  return {mixture_ ? mixture_->forward(z, context.router_logits) : dense_->forward(z), residual};
}

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

std::unique_ptr<Block> mixture_block(const ModelConfig& c, const SelfAttentionOptions& attention,
                                     const MixtureOptions& mixture, int64_t layer, const char* name) {
  if (c.mixture.sparse.at(layer)) {
    return std::make_unique<MixtureBlock>(c, attention, std::make_unique<Mixture>(mixture), nullptr, name);
  }
  const GatedMLPOptions dense{.dim = c.hidden_size, .hidden = c.intermediate_size, .activation = c.hidden_act};
  return std::make_unique<MixtureBlock>(c, attention, nullptr, std::make_unique<GatedMLP>(dense), name);
}

TensorRules expert_rules(const ExpertNames& n) {
  const std::string one = cat("model.layers.*.", n.block, ".experts.*."), all = "model.layers.*.mlp.experts.";
  return {TensorRule::stack({cat(one, n.gate, ".weight"), cat(one, n.up, ".weight")}, all + "gate_up_proj"),
          TensorRule::stack({cat(one, n.down, ".weight")}, all + "down_proj")};
}

}  // namespace hotswap
