// OLMo 2: norms behind attention and MLP alone, and one over all heads of queries and of keys.
#include "hotswap/models/families/olmo2.h"

#include <ATen/ops/add.h>

#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

SelfAttentionOptions olmo2_attention(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = c.norm();
  attention.qk_norm_of_all_heads = true;
  return attention;
}

}  // namespace

Olmo2Block::Olmo2Block(const ModelConfig& c, int64_t layer) : Olmo2Block(c, olmo2_attention(c, layer)) {}

Olmo2Block::Olmo2Block(const ModelConfig& c, const SelfAttentionOptions& attention)
    : self_attn_(attention),
      mlp_(mlp_options(c)),
      post_attention_layernorm_(c.hidden_size, c.norm()),
      post_feedforward_layernorm_(c.hidden_size, c.norm()) {
  own("self_attn", self_attn_);
  own("mlp", mlp_);
  own("post_attention_layernorm", post_attention_layernorm_);
  own("post_feedforward_layernorm", post_feedforward_layernorm_);
}

HiddenState Olmo2Block::forward(const HiddenState& in, const ForwardContext& context) {
  const Tensor x = in.residual.defined() ? at::add(in.residual, in.x) : in.x;
  const Tensor h = at::add(x, post_attention_layernorm_.forward(self_attn_.forward(x, context)));
  return {post_feedforward_layernorm_.forward(mlp_.forward(h)), h};
}

ModelConfig read_olmo2_config(const Json& json, const ConfigDefaults& defaults) {
  ModelConfig c = read_decoder_config(json, defaults);
  c.norm_casting = "gemma";
  c.rotates_in_float32 = true;
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

}  // namespace hotswap

namespace hotswap::olmo2 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_olmo2_config(json, {});
  check_layer_types(c, json);
  return c;
}

TensorRules gguf_rules(const ModelConfig&) {
  TensorRules rules = {TensorRule::rename("blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm"),
                       TensorRule::rename("blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm")};
  rules.insert(rules.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return rules;
}

}  // namespace

const RegisteredFamily kOlmo2({.model_type = "olmo2",
                               .class_name = "Olmo2ForCausalLM",
                               .read_config = read_config,
                               .make_block = make_olmo2_block,
                               .gguf_architecture = "olmo2",
                               .gguf_rules = gguf_rules});

}  // namespace hotswap::olmo2
