// Llama, and every model that says model_type "llama": SmolLM, TinyLlama, ...
#include "hotswap/models/families/llama.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include "hotswap/layers/fixed_memory.h"
#include "hotswap/models/family.h"

namespace hotswap {

SelfAttentionOptions attention_options(const ModelConfig& c, int64_t layer) {
  return {.layer = layer,
          .hidden_size = c.hidden_size,
          .num_heads = c.num_attention_heads,
          .num_kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .sliding_window = c.window_of(layer),
          .dropout = c.attention_dropout};
}

namespace {

std::string activation_of(const ModelConfig& c) {
  const std::string layer = activation_kind(c.hidden_act, "hidden_act").layer;
  return layer == "SiLU" ? "silu" : layer == "GeluTanh" ? "gelu_tanh" : layer;
}

SlotNeeds step_needs(const ModelConfig& c, const SelfAttentionOptions& o) {
  SlotNeeds needs{.features = {activation_of(c)},
                  .numbers = {{"head_dims", {o.head_dim}}, {"group_sizes", {o.num_heads / o.num_kv_heads}}}};
  const auto need = [&](bool needed, const char* feature) {
    if (needed) needs.features.emplace_back(feature);
  };
  need(o.qkv_bias || o.output_bias || c.mlp_bias, "bias");
  need(o.qk_norm.has_value(), "qk_norm");
  need(o.sliding_window > 0, "window");
  need(o.chunk > 0, "chunk");
  need(o.softcap != 0, "softcap");
  need(o.sinks, "sinks");
  need(!o.rotary, "no rotary embedding");
  return needs;
}

}  // namespace

LlamaBlock::LlamaBlock(const ModelConfig& c, const SelfAttentionOptions& attention)
    : self_attn_(attention),
      mlp_({.dim = c.hidden_size, .hidden = c.intermediate_size, .activation = c.hidden_act, .bias = c.mlp_bias}),
      input_layernorm_(c.hidden_size, {.eps = c.rms_norm_eps}),
      post_attention_layernorm_(c.hidden_size, {.eps = c.rms_norm_eps}),
      eps_(c.rms_norm_eps),
      activation_(activation_of(c)),
      step_(this, "DecoderLayer", "decoder_layer/1", stock::decoder_layer, step_needs(c, attention)) {
  own("self_attn", self_attn_);
  own("mlp", mlp_);
  own("input_layernorm", input_layernorm_);
  own("post_attention_layernorm", post_attention_layernorm_);
}

Tensor LlamaBlock::step(const HiddenState& in, const ForwardContext& context) const {
  const SequenceInfo& s = context.attention.sequence();
  const bool one_token = step_.bound() && context.cache != nullptr && context.cache->capacity() > 0 &&
                         in.x.size(1) == 1 && in.x.size(0) <= kMostDecoderRows && !s.padding.defined() &&
                         !at::GradMode::is_enabled();
  if (!one_token || context.rope.cos.size(-1) != self_attn_.options().head_dim) return {};
  const auto* memory = dynamic_cast<const FixedMemory*>(&context.cache->layer(self_attn_.options().layer));
  if (memory == nullptr) return {};
  const auto [k, v] = memory->fixed_memory();
  if (!k.defined() || k.size(0) != in.x.size(0)) return {};
  DecoderLayerParts parts{.input_norm = input_layernorm_.weight,
                          .cos = context.rope.cos,
                          .sin = context.rope.sin,
                          .k_cache = k,
                          .v_cache = v,
                          .position = context.cache->positions(),
                          .post_norm = post_attention_layernorm_.weight,
                          .gate = mlp_.gate_proj.weight,
                          .gate_bias = mlp_.gate_proj.bias,
                          .up = mlp_.up_proj.weight,
                          .up_bias = mlp_.up_proj.bias,
                          .down = mlp_.down_proj.weight,
                          .down_bias = mlp_.down_proj.bias,
                          .eps = eps_,
                          .activation = activation_};
  self_attn_.add_to(parts);
  return step_(in.residual.defined() ? at::add(in.residual, in.x) : in.x, parts);
}

HiddenState LlamaBlock::forward(const HiddenState& in, const ForwardContext& context) {
  if (Tensor out = step(in, context); out.defined()) return {std::move(out), {}};
  const auto [y, h] = in.residual.defined() ? input_layernorm_.forward(in.x, in.residual)
                                            : AddRMSNorm::Result{input_layernorm_.forward(in.x), in.x};
  const auto [z, residual] = post_attention_layernorm_.forward(self_attn_.forward(y, context), h);
  return {mlp_.forward(z), residual};
}

namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json);
  check_layer_types(c, json);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  return std::make_unique<LlamaBlock>(c, attention);
}

TensorRules gguf_rules(const ModelConfig& c) {
  const auto half_split = [](int64_t heads) {
    return [heads](const at::Tensor& rows) { return half_split_rows(rows, heads); };
  };
  TensorRules rules = {
      TensorRule::rename("blk.*.attn_q", "model.layers.*.self_attn.q_proj", half_split(c.num_attention_heads)),
      TensorRule::rename("blk.*.attn_k", "model.layers.*.self_attn.k_proj", half_split(c.num_key_value_heads))};
  rules.insert(rules.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return rules;
}

}  // namespace

extern const Family kLlama;
const Family kLlama{.model_type = "llama",
                    .class_name = "LlamaForCausalLM",
                    .read_config = read_config,
                    .make_block = make_block,
                    .gguf_architecture = "llama",
                    .gguf_rules = gguf_rules,
                    .gguf_head_dim_is_rotary = true};

}  // namespace hotswap
