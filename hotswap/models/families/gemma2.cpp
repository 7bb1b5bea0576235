// Gemma 2: Gemma with norms behind attention and MLP too, capped scores and logits, and a window on every other layer.
#include "hotswap/models/families/gemma2.h"

#include <cmath>

#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/gemma.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap {

Gemma2Block::Gemma2Block(const ModelConfig& c, const SelfAttentionOptions& attention)
    : self_attn_(attention),
      mlp_(mlp_options(c)),
      input_layernorm_(c.hidden_size, c.norm()),
      pre_feedforward_layernorm_(c.hidden_size, c.norm()),
      post_attention_layernorm_(c.hidden_size, c.norm()),
      post_feedforward_layernorm_(c.hidden_size, c.norm()) {
  own("self_attn", self_attn_);
  own("mlp", mlp_);
  own("input_layernorm", input_layernorm_);
  own("post_attention_layernorm", post_attention_layernorm_);
  own("pre_feedforward_layernorm", pre_feedforward_layernorm_);
  own("post_feedforward_layernorm", post_feedforward_layernorm_);
}

HiddenState Gemma2Block::forward(const HiddenState& in, const ForwardContext& context) {
  const auto [y, h] = in.residual.defined() ? input_layernorm_.forward(in.x, in.residual)
                                            : AddRMSNorm::Result{input_layernorm_.forward(in.x), in.x};
  const Tensor attended = post_attention_layernorm_.forward(self_attn_.forward(y, context));
  const auto [z, residual] = pre_feedforward_layernorm_.forward(attended, h);
  return {post_feedforward_layernorm_.forward(mlp_.forward(z)), residual};
}

void read_gemma2_scores(ModelConfig& c, const Json& json, const Gemma2Caps& absent) {
  c.attention_scale = std::pow(positive_number(json, "query_pre_attn_scalar", 256), -0.5);
  c.attn_logit_softcapping = positive_or_null(json, "attn_logit_softcapping", absent.attention);
  c.final_logit_softcapping = positive_or_null(json, "final_logit_softcapping", absent.logits);
}

void add_gemma2_keys(const GgufFile& file, const std::string& prefix, int64_t root_layers,
                     nlohmann::ordered_json& config) {
  config["hidden_activation"] = "gelu_pytorch_tanh";  // implied there
  if (config.at("num_hidden_layers") == root_layers) {
    config["query_pre_attn_scalar"] =
        config.at("hidden_size").get<int64_t>() / config.at("num_attention_heads").get<int64_t>();
  } else {
    config["query_pre_attn_scalar"] = config.at("head_dim");
  }
  if (file.has(prefix + "attention.sliding_window")) {
    config["sliding_window"] = file.at<int64_t>(prefix + "attention.sliding_window");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (file.has(prefix + key)) config[key] = file.at<double>(prefix + key);
  }
}

TensorRules gemma2_gguf_rules(const ModelConfig&) {
  return gemma_gguf_rules({{"attn_norm", "input_layernorm"},
                           {"post_attention_norm", "post_attention_layernorm"},
                           {"ffn_norm", "pre_feedforward_layernorm"},
                           {"post_ffw_norm", "post_feedforward_layernorm"},
                           {"attn_q_norm", "self_attn.q_norm"},
                           {"attn_k_norm", "self_attn.k_norm"}});
}

}  // namespace hotswap

namespace hotswap::gemma2 {
namespace {

ModelConfig read_config(const Json& json) {
  refuse_if(sees_both_sides(json), json, "use_bidirectional_attention");
  ModelConfig c = read_gemma_config(json, {.activation_key = "hidden_activation"});
  read_gemma2_scores(c, json, {.attention = 50, .logits = 30});
  read_sliding_pattern(c, json, 2);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  return std::make_unique<Gemma2Block>(c, attention);
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  add_gemma2_keys(file, prefix, /*root_layers=*/46, config);
}

}  // namespace

const RegisteredFamily kGemma2({.model_type = "gemma2",
                                .class_name = "Gemma2ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .gguf_architecture = "gemma2",
                                .gguf_rules = gemma2_gguf_rules,
                                .gguf_reads = {"attention.sliding_window", "attn_logit_softcapping",
                                               "final_logit_softcapping"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::gemma2
