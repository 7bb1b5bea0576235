// GLM: Llama's block with biases of queries, keys and values; half of each head turns, interleaved; gate and up are
// packed.
#include "hotswap/models/families/glm.h"

#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap {

ModelConfig read_glm_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim = 128,
                                             .heads_may_lack = false,
                                             .norm_eps = 1.5625e-7,
                                             .rope = {.may_be_partial = true, .partial = 0.5}});
  check_layer_types(c, json);
  c.attention_bias = flag(json, "attention_bias", true);
  c.mlp_bias = false;  // transformers ignores the key
  return c;
}

SelfAttentionOptions glm_attention(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = c.attention_bias;
  attention.interleaved_rotary = true;
  return attention;
}

TensorRules glm_rules(const ModelConfig&) {
  const std::string mlp = "model.layers.*.mlp.";
  return {TensorRule::split(mlp + "gate_up_proj", {mlp + "gate_proj", mlp + "up_proj"})};
}

TensorRules glm_module_names(const ModelConfig&) {
  const std::string mlp = "model.layers.*.mlp.";
  return {TensorRule::rename(mlp + "activation_fn", mlp + "act_fn")};
}

// A file without the key rotates whole heads.
void gguf_whole_heads(const GgufFile&, const std::string&, nlohmann::ordered_json& config) {
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
}

namespace glm {

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<LlamaBlock>(c, glm_attention(c, layer));
}

TensorRules gguf_rules(const ModelConfig&) {
  return with_gguf_decoder_rules({gguf_packed_attention(), gguf_packed_gate()});
}

const RegisteredFamily kFamily({.model_type = "glm",
                                .class_name = "GlmForCausalLM",
                                .read_config = read_glm_config,
                                .make_block = make_block,
                                .make_fused_step = make_fused_decoder_step,
                                .tensor_rules = glm_rules,
                                .own_parameter_order = true,
                                .module_names = glm_module_names,
                                .gguf_architecture = "chatglm",
                                .gguf_rules = gguf_rules,
                                .gguf_rotates_part = true,
                                .gguf_extend = gguf_whole_heads});

}  // namespace glm
}  // namespace hotswap
