// Llama, and every model that says model_type "llama": SmolLM, TinyLlama, ...
#include "hotswap/models/families/llama.h"

#include <ATen/ops/mul.h>

#include "hotswap/layers/dropout.h"
#include "hotswap/models/family.h"
#include "hotswap/models/trunk.h"

namespace hotswap {

SelfAttentionOptions attention_options(const ModelConfig& c, int64_t layer) {
  return {.layer = layer,
          .hidden_size = c.hidden_size,
          .num_heads = c.num_attention_heads,
          .num_kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .rotary = c.rotates(layer),
          .has_rotary = c.rope_parameters.dim > 0,
          .scale = c.attention_scale,
          .sliding_window = c.window_of(layer),
          .softcap = c.attn_logit_softcapping,
          .dropout = c.attention_dropout,
          .causal = c.causal};
}

GatedMLPOptions mlp_options(const ModelConfig& c) {
  return {.dim = c.hidden_size, .hidden = c.intermediate_size, .activation = c.hidden_act, .bias = c.mlp_bias};
}

LlamaBlock::LlamaBlock(const ModelConfig& c, std::unique_ptr<TokenMixer> attention, std::unique_ptr<FeedForward> mlp,
                       const char* mlp_name, const char* attention_name)
    : residual_multiplier_(c.residual_multiplier),
      dropout_(c.residual_dropout),
      self_attn_(std::move(attention)),
      mlp_(std::move(mlp)),
      input_layernorm_(make_norm(c)),
      post_attention_layernorm_(make_norm(c)) {
  own(attention_name, *self_attn_);
  own(mlp_name, *mlp_);
  own("input_layernorm", *input_layernorm_);
  own("post_attention_layernorm", *post_attention_layernorm_);
}

LlamaBlock::LlamaBlock(const ModelConfig& c, const SelfAttentionOptions& attention)
    : LlamaBlock(c, std::make_unique<SelfAttention>(attention), std::make_unique<GatedMLP>(mlp_options(c))) {
  step_ = std::make_unique<DecoderStep>(
      this, c,
      DecoderStep::Parts{dynamic_cast<SelfAttention&>(*self_attn_), dynamic_cast<const GatedMLP&>(*mlp_),
                         dynamic_cast<const RMSNorm&>(*input_layernorm_),
                         dynamic_cast<const RMSNorm&>(*post_attention_layernorm_)});
}

Tensor LlamaBlock::scaled(const Tensor& branch, double dropped) const {
  const Tensor kept = seeded_dropout(branch, dropped, training());
  return residual_multiplier_ == 1 ? kept : at::mul(kept, residual_multiplier_);
}

HiddenState LlamaBlock::forward(const HiddenState& in, const ForwardContext& context) {
  if (step_) {
    if (Tensor out = step_->forward(in, context); out.defined()) return {std::move(out), {}};
  }
  const auto [y, h] = input_layernorm_->after(in.x, in.residual);
  const auto [z, residual] =
      post_attention_layernorm_->forward(scaled(self_attn_->forward(y, context), dropout_.attention), h);
  return {scaled(mlp_->forward(z, context), dropout_.mlp), residual};
}

std::unique_ptr<Block> make_llama_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  return std::make_unique<LlamaBlock>(c, attention);
}

TensorRules gguf_interleaved_rules(const ModelConfig& c) {
  const auto half_split = [](int64_t heads) {
    return [heads](const at::Tensor& rows) { return half_split_rows(rows, heads); };
  };
  TensorRules rules = {
      TensorRule::move_rows("blk.*.attn_q", "model.layers.*.self_attn.q_proj", half_split(c.num_attention_heads)),
      TensorRule::move_rows("blk.*.attn_k", "model.layers.*.self_attn.k_proj", half_split(c.num_key_value_heads))};
  rules.insert(rules.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return rules;
}

}  // namespace hotswap

namespace hotswap::llama {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json);
  check_layer_types(c, json);
  return c;
}

}  // namespace

const RegisteredFamily kLlama({.model_type = "llama",
                               .class_name = "LlamaForCausalLM",
                               .read_config = read_config,
                               .make_block = make_llama_block,
                               .make_fused_step = make_fused_decoder_step,
                               .gguf_architecture = "llama",
                               .gguf_rules = gguf_interleaved_rules,
                               .gguf_head_dim_is_rotary = true});

}  // namespace hotswap::llama
