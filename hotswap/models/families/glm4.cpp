// GLM-4-0414: GLM with norms after attention and MLP too, which is Gemma 2's block under other names.
#include "hotswap/models/families/gemma2.h"
#include "hotswap/models/families/glm.h"
#include "hotswap/models/family.h"

namespace hotswap::glm4 {

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<Gemma2Block>(c, glm_attention(c, layer));
}

TensorRules norm_names() {
  const std::string layer = "model.layers.*.";
  return {TensorRule::rename(layer + "post_self_attn_layernorm", layer + "post_attention_layernorm"),
          TensorRule::rename(layer + "post_attention_layernorm", layer + "pre_feedforward_layernorm"),
          TensorRule::rename(layer + "post_mlp_layernorm", layer + "post_feedforward_layernorm")};
}

TensorRules tensor_rules(const ModelConfig& c) {
  TensorRules rules = glm_rules(c), norms = norm_names();
  rules.insert(rules.end(), norms.begin(), norms.end());
  return rules;
}

TensorRules module_names(const ModelConfig& c) {
  TensorRules rules = glm_module_names(c), norms = norm_names();
  rules.insert(rules.end(), norms.begin(), norms.end());
  return rules;
}

TensorRules gguf_rules(const ModelConfig&) {
  const std::string layer = "model.layers.*.";
  return with_gguf_decoder_rules({gguf_packed_attention(), gguf_packed_gate(),
                                  TensorRule::rename("blk.*.post_attention_norm", layer + "post_attention_layernorm"),
                                  TensorRule::rename("blk.*.ffn_norm", layer + "pre_feedforward_layernorm"),
                                  TensorRule::rename("blk.*.post_ffw_norm", layer + "post_feedforward_layernorm")});
}

const RegisteredFamily kFamily({.model_type = "glm4",
                                .class_name = "Glm4ForCausalLM",
                                .read_config = read_glm_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .module_names = module_names,
                                .gguf_architecture = "glm4",
                                .gguf_rules = gguf_rules,
                                .gguf_rotates_part = true,
                                .gguf_extend = gguf_whole_heads});

}  // namespace hotswap::glm4
