// OLMo 2: norms behind attention and MLP alone, and one over all heads of queries and of keys.
#include <ATen/ops/add.h>

#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

//   hidden += norm(attention(hidden)); hidden += norm(mlp(hidden))
class Olmo2Block : public Block {
 public:
  Olmo2Block(const ModelConfig& c, const SelfAttentionOptions& attention)
      : self_attn_(attention),
        mlp_(mlp_options(c)),
        post_attention_layernorm_(c.hidden_size, c.norm()),
        post_feedforward_layernorm_(c.hidden_size, c.norm()) {
    own("self_attn", self_attn_);
    own("mlp", mlp_);
    own("post_attention_layernorm", post_attention_layernorm_);
    own("post_feedforward_layernorm", post_feedforward_layernorm_);
  }
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override {
    const Tensor x = in.residual.defined() ? at::add(in.residual, in.x) : in.x;
    const Tensor h = at::add(x, post_attention_layernorm_.forward(self_attn_.forward(x, context)));
    return {post_feedforward_layernorm_.forward(mlp_.forward(h)), h};
  }
  std::unique_ptr<CacheLayer> make_cache_layer(const CacheOptions& options) const override {
    return self_attn_.make_cache_layer(options);
  }

 private:
  SelfAttention self_attn_;
  GatedMLP mlp_;
  RMSNorm post_attention_layernorm_, post_feedforward_layernorm_;
};

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json);
  check_layer_types(c, json);
  c.norm_casting = "gemma";
  c.rotates_in_float32 = true;
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = c.norm();
  attention.qk_norm_of_all_heads = true;
  return std::make_unique<Olmo2Block>(c, attention);
}

TensorRules gguf_rules(const ModelConfig&) {
  TensorRules rules = {TensorRule::rename("blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm"),
                       TensorRule::rename("blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm")};
  rules.insert(rules.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return rules;
}

}  // namespace

extern const Family kOlmo2;
const Family kOlmo2{.model_type = "olmo2",
                    .class_name = "Olmo2ForCausalLM",
                    .read_config = read_config,
                    .make_block = make_block,
                    .gguf_architecture = "olmo2",
                    .gguf_rules = gguf_rules};

}  // namespace hotswap
