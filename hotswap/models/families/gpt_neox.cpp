// GPT-NeoX and Pythia: LayerNorms, attention and an MLP without a gate side by side, a part of each head turns, and
// queries, keys and values are packed head by head.
#include "hotswap/layers/plain_mlp.h"
#include "hotswap/models/config_names.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/packed_heads.h"
#include "hotswap/models/families/parallel_block.h"
#include "hotswap/models/family.h"

namespace hotswap::gpt_neox {

struct Options {
  bool parallel = true;
};

ModelConfig read_named(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim_key = "",
                                             .grouped_heads = false,
                                             .activation = "gelu",
                                             .norm_eps_key = "layer_norm_eps",
                                             .norm_eps = 1e-5,
                                             .rope = {.may_be_partial = true, .partial = 0.25}});
  check_layer_types(c, json);
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.attention_bias = flag(json, "attention_bias", true);
  c.mlp_bias = true;
  const double p = read_dropout(json, "hidden_dropout");
  c.residual_dropout = {.embedding = p, .attention = p, .mlp = p};
  c.family_options = Options{.parallel = flag(json, "use_parallel_residual", true)};
  return c;
}

ModelConfig read_config(const Json& json) {
  return read_by_names(json, {{"rotary_pct", "partial_rotary_factor"}, {"rotary_emb_base", "rope_theta"}}, read_named);
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions options = attention_options(c, layer);
  options.qkv_bias = options.output_bias = c.attention_bias;
  auto attention = std::make_unique<SelfAttention>(options);
  auto mlp = std::make_unique<PlainMLP>(mlp_options(c));
  if (std::any_cast<Options>(c.family_options).parallel) {
    return std::make_unique<ParallelBlock>(c, std::move(attention), std::move(mlp),
                                           ParallelBlockOptions{.two_norms = true});
  }
  return std::make_unique<LlamaBlock>(c, std::move(attention), std::move(mlp));
}

TensorRules tensor_rules(const ModelConfig& c) {
  const std::string theirs = "gpt_neox.layers.*.", layer = "model.layers.*.";
  return {TensorRule::leave_out(theirs + "attention.bias"),
          TensorRule::leave_out(theirs + "attention.masked_bias"),
          packed_heads(theirs + "attention.query_key_value", layer + "self_attn", c),
          TensorRule::rename(theirs + "attention.dense", layer + "self_attn.o_proj"),
          TensorRule::rename(theirs + "attention", layer + "self_attn"),
          TensorRule::rename(theirs + "mlp.dense_h_to_4h", layer + "mlp.up_proj"),
          TensorRule::rename(theirs + "mlp.dense_4h_to_h", layer + "mlp.down_proj"),
          TensorRule::rename(theirs + "mlp.act", layer + "mlp.act_fn"),
          TensorRule::rename("gpt_neox.layers", "model.layers"),
          TensorRule::rename("gpt_neox.embed_in", "model.embed_tokens"),
          TensorRule::rename("gpt_neox.final_layer_norm", "model.norm"),
          TensorRule::rename("embed_out", "lm_head")};  // in older files
}

// llama.cpp's converter has put queries, keys and values one after the other.
TensorRules gguf_rules(const ModelConfig&) { return with_gguf_decoder_rules({gguf_packed_attention()}); }

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  config["hidden_act"] = "gelu";  // implied there
  config["use_parallel_residual"] = file.at<bool>(prefix + "use_parallel_residual");
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
  rename_gguf_keys(config, {{"partial_rotary_factor", "rotary_pct"}, {"rope_theta", "rotary_emb_base"}});
}

const RegisteredFamily kFamily({.model_type = "gpt_neox",
                                .class_name = "GPTNeoXForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .module_names = tensor_rules,
                                .gguf_architecture = "gptneox",
                                .gguf_rules = gguf_rules,
                                .gguf_rotates_part = true,
                                .gguf_norm_eps = "layer_norm_eps",
                                .gguf_reads = {"use_parallel_residual"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::gpt_neox
