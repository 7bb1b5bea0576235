// Cohere, Command-R and Aya: one LayerNorm in float32 before attention and MLP, which stand side by side; an
// interleaved rotary embedding, and logits that are scaled.
#include "hotswap/models/families/cohere.h"

#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/parallel_block.h"
#include "hotswap/models/family.h"

namespace hotswap {

ModelConfig read_cohere_config(const Json& json, ConfigDefaults defaults) {
  defaults.tie_word_embeddings = true;
  defaults.norm_eps_key = "layer_norm_eps";
  defaults.norm_eps = 1e-5;
  ModelConfig c = read_decoder_config(json, defaults);
  c.mlp_bias = false;  // transformers ignores the key
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps, .bias = false, .wide = true};
  c.logits_multiplier = json.get<double>("logit_scale", 0.0625);
  return c;
}

std::unique_ptr<Block> make_cohere_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.interleaved_rotary = attention.wide_rotary = true;
  if (c.use_qk_norm) {
    attention.qk_layer_norm = c.layer_norm;
    attention.norm_for_each_head = true;
  }
  return std::make_unique<ParallelBlock>(c, std::make_unique<SelfAttention>(attention),
                                         std::make_unique<GatedMLP>(mlp_options(c)),
                                         ParallelBlockOptions{.residual_first = true});
}

namespace cohere {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_cohere_config(json, {.rope = {.theta = 500000}});
  check_layer_types(c, json);
  c.use_qk_norm = json.get<bool>("use_qk_norm", false);
  return c;
}

TensorRules gguf_rules(const ModelConfig&) { return with_gguf_decoder_rules({gguf_packed_attention()}); }

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  config["logit_scale"] = file.get<double>(prefix + "logit_scale", 1);
  config["use_qk_norm"] = file.has_tensor("blk.0.attn_q_norm.weight");
}

const RegisteredFamily kFamily({.model_type = "cohere",
                                .class_name = "CohereForCausalLM",
                                .read_config = read_config,
                                .make_block = make_cohere_block,
                                .gguf_architecture = "command-r",
                                .gguf_rules = gguf_rules,
                                .gguf_norm_eps = "layer_norm_eps",
                                .gguf_reads = {"logit_scale"},
                                .gguf_extend = gguf_extend});

}  // namespace cohere
}  // namespace hotswap
