// Phi-3.5-MoE: Llama's block with LayerNorms and biases, and in every layer a mixture of experts by SparseMixer's
// routing; longrope stretches the heads' rotary embedding.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::phimoe {
namespace {

// short_mscale and long_mscale instead of attention_factor. Published models have one value for both.
void read_mscale(ModelConfig& c, const Json& json) {
  const std::string& rope = c.rope_parameters.type;
  refuse_if(rope != "default" && rope != "longrope", json, cat("a rope type of ", rope));
  if (rope == "default") return;
  const Json given = json.child(json.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  const double scale = positive_number(given, "short_mscale");
  refuse_if(positive_number(given, "long_mscale") != scale, given, "a long_mscale other than short_mscale");
  c.rope_parameters.attention_factor = scale;
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.norm_eps = 1e-5, .rope = {.theta = 1e6}});
  read_mscale(c, json);
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.mlp_bias = false;  // whatever the config has, as in transformers
  c.head_bias = json.get<bool>("lm_head_bias", false);
  c.sliding_window = json.has("sliding_window") ? read_sliding_window(json, 0) : 0;
  if (c.sliding_window > 0) c.layer_types.assign(c.num_hidden_layers, "sliding_attention");
  check_layer_types(c, json);
  c.mixture = read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size", .num_experts_per_tok = 2});
  refuse_if(c.mixture.num_experts_per_tok != 2, json, "num_experts_per_tok other than 2");
  c.mixture.router_jitter_noise = json.get<double>("router_jitter_noise", 0.01);
  c.family_options = json.get<double>("input_jitter_noise", 0);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  MixtureOptions mixture = mixture_options(c);
  mixture.router.scoring = Scoring::kSparseMixer;
  mixture.router.nearness = c.mixture.router_jitter_noise;
  mixture.router_name = "router";
  mixture.jitter = std::any_cast<double>(c.family_options);
  mixture.jitters = 2;  // of the block and of its router, which change the same tokens
  return mixture_block(c, attention, mixture, layer);
}

TensorRules tensor_rules(const ModelConfig&) {
  TensorRules rules = expert_rules({.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
  rules.push_back(TensorRule::rename("model.layers.*.block_sparse_moe.gate", "model.layers.*.mlp.router"));
  return rules;
}

}  // namespace

const RegisteredFamily kPhiMoe({.model_type = "phimoe",
                                .class_name = "PhimoeForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules});

}  // namespace hotswap::phimoe
