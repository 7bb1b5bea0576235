// StableLM: Llama's block with LayerNorms, of which a part of each head turns; in some models attention and MLP stand
// side by side after one norm, and query and key heads have LayerNorms of their own.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/parallel_block.h"
#include "hotswap/models/family.h"

namespace hotswap::stablelm {

struct Options {
  bool parallel = false;
};

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim_key = "",
                                             .heads_may_lack = false,
                                             .norm_eps_key = "layer_norm_eps",
                                             .norm_eps = 1e-5,
                                             .rope = {.may_be_partial = true, .partial = 0.25}});
  check_layer_types(c, json);
  c.mlp_bias = false;  // transformers ignores the key
  c.attention_bias = json.get<bool>("use_qkv_bias", false);
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.use_qk_norm = json.get<bool>("qk_layernorm", false);
  c.residual_dropout.mlp = read_dropout(json, "hidden_dropout");
  c.family_options = Options{.parallel = json.get<bool>("use_parallel_residual", false)};
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions options = attention_options(c, layer);
  options.qkv_bias = c.attention_bias;
  if (c.use_qk_norm) {
    options.qk_layer_norm = LayerNormOptions{.eps = c.rms_norm_eps, .bias = false};
    options.norm_for_each_head = true;
  }
  auto attention = std::make_unique<SelfAttention>(options);
  auto mlp = std::make_unique<GatedMLP>(mlp_options(c));
  if (std::any_cast<Options>(c.family_options).parallel) {
    return std::make_unique<ParallelBlock>(c, std::move(attention), std::move(mlp),
                                           ParallelBlockOptions{.residual_first = true});
  }
  return std::make_unique<LlamaBlock>(c, std::move(attention), std::move(mlp));
}

TensorRules tensor_rules(const ModelConfig&) {
  const std::string attention = "model.layers.*.self_attn.";
  return {TensorRule::stack({attention + "q_layernorm.norms.*.weight"}, attention + "q_norm.weight"),
          TensorRule::stack({attention + "k_layernorm.norms.*.weight"}, attention + "k_norm.weight")};
}

TensorRules module_names(const ModelConfig&) {
  const std::string attention = "model.layers.*.self_attn.";
  return {TensorRule::rename(attention + "q_layernorm", attention + "q_norm"),
          TensorRule::rename(attention + "k_layernorm", attention + "k_norm")};
}

// A file may state parallel branches of a model that has the norm of the second one: the tensors decide.
void gguf_extend(const GgufFile& file, const std::string&, nlohmann::ordered_json& config) {
  config["use_parallel_residual"] = !file.has_tensor("blk.0.ffn_norm.weight");
  config["qk_layernorm"] = file.has_tensor("blk.0.attn_q_norm.weight");
  config["use_qkv_bias"] = config.at("attention_bias");
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
}

const RegisteredFamily kFamily({.model_type = "stablelm",
                                .class_name = "StableLmForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .module_names = module_names,
                                .gguf_architecture = "stablelm",
                                .gguf_rotates_part = true,
                                .gguf_norm_eps = "layer_norm_eps",
                                .gguf_reads = {"use_parallel_residual"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::stablelm
