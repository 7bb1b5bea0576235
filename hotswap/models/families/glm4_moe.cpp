// GLM-4.5: Llama's block with a part of each head turning, optional norms of query and key heads, and
// after the first layers DeepSeek-V3's mixtures.
#include "hotswap/models/families/deepseek_mixture.h"
#include "hotswap/models/families/glm.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::glm4_moe {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(
      json, {.heads_may_lack = false, .norm_eps = 1e-5, .rope = {.may_be_partial = true, .partial = 0.5}});
  check_layer_types(c, json);
  c.mlp_bias = false;  // transformers ignores the key
  c.use_qk_norm = json.get<bool>("use_qk_norm", false);
  read_deepseek_mixtures(c, json, {.first_dense = 1, .groups = 1, .top_groups = 1, .scale = 1});
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = c.attention_bias;
  if (c.use_qk_norm) attention.qk_norm = c.norm();
  return mixture_block(c, attention, deepseek_v3_mixture(c), layer);
}

TensorRules tensor_rules(const ModelConfig& c) {
  TensorRules rules = separate_experts(c);
  rules.push_back(layers_beyond(c));
  return rules;
}

TensorRules gguf_rules(const ModelConfig& c) {
  TensorRules rules = gguf_deepseek_mixture_rules(c);
  rules.insert(rules.begin(),
               TensorRule::rename("blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm"));
  return rules;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_deepseek_mixtures(file, prefix, config);
  config["use_qk_norm"] = file.has_tensor("blk.0.attn_q_norm.weight");
  gguf_whole_heads(file, prefix, config);
}

const RegisteredFamily kFamily({.model_type = "glm4_moe",
                                .class_name = "Glm4MoeForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .gguf_architecture = "glm4moe",
                                .gguf_rules = gguf_rules,
                                .gguf_rotates_part = true,
                                .gguf_reads = gguf_deepseek_mixture_keys(),
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::glm4_moe
