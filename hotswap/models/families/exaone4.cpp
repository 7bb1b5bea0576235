// EXAONE 4: OLMo 2's block with a norm on every query and key head; where some layers slide, the others turn nothing.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/olmo2.h"
#include "hotswap/models/family.h"

namespace hotswap::exaone4 {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false, .norm_eps = 1e-5});
  c.mlp_bias = false;  // transformers ignores the key
  // Beside layer_types some models have a pattern in letters, "LLLG".
  read_sliding_pattern(c, json, json.has("layer_types") ? 1 : positive(json, "sliding_window_pattern", 4));
  for (const std::string& type : c.layer_types) {
    c.no_rope_layers.push_back(c.sliding_window == 0 || type == "sliding_attention" ? 1 : 0);
  }
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qk_norm = c.norm();
  return std::make_unique<Olmo2Block>(c, attention);
}

TensorRules gguf_rules(const ModelConfig&) {
  return with_gguf_decoder_rules(
      {TensorRule::rename("blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm"),
       TensorRule::rename("blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm")});
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  add_gguf_windows(file, prefix, 4, config);
}

const RegisteredFamily kFamily({.model_type = "exaone4",
                                .class_name = "Exaone4ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .gguf_architecture = "exaone4",
                                .gguf_rules = gguf_rules,
                                .gguf_reads = {"attention.sliding_window", "attention.sliding_window_pattern"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::exaone4
