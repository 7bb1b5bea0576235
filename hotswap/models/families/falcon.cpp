// Falcon: LayerNorms and an MLP without a gate. Falcon-7b has one key head and one norm for attention and MLP side by
// side, 40b groups of heads and a norm for each of the two, and the oldest kind one after the other. ALiBi is refused.
#include "hotswap/layers/plain_mlp.h"
#include "hotswap/models/config_names.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/packed_heads.h"
#include "hotswap/models/families/parallel_block.h"
#include "hotswap/models/family.h"

namespace hotswap::falcon {

struct Options {
  bool parallel = true, two_norms = false;
};

ModelConfig read_named(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim_key = "",
                                             .key_heads_key = "num_kv_heads",
                                             .intermediate_size_key = "ffn_hidden_size",
                                             .intermediate_times = 4,
                                             .activation_key = "activation",
                                             .activation = "gelu",
                                             .tie_word_embeddings = true,
                                             .norm_eps_key = "layer_norm_epsilon",
                                             .norm_eps = 1e-5});
  check_layer_types(c, json);
  refuse_if(json.get<bool>("alibi", false), json, "alibi");
  const bool newer = json.get<bool>("new_decoder_architecture", false);
  const auto norms = json.get<int64_t>("num_ln_in_parallel_attn", newer ? 2 : 1);
  const bool one_key_head = !newer && flag(json, "multi_query", true);
  if (one_key_head) c.num_key_value_heads = 1;
  refuse_if(!newer && !one_key_head && c.num_key_value_heads != c.num_attention_heads, json,
            "num_kv_heads without new_decoder_architecture");
  Options options{.parallel = newer || flag(json, "parallel_attn", true), .two_norms = newer && norms == 2};
  const bool known = norms == 1 || (norms == 2 && newer);
  refuse_if(options.parallel && !known, json, cat("num_ln_in_parallel_attn ", norms));
  refuse_if(newer && !flag(json, "parallel_attn", true), json, "parallel_attn = false");
  c.family_options = options;
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.attention_bias = c.mlp_bias = json.get<bool>("bias", false);
  const double p = read_dropout(json, "hidden_dropout");
  c.residual_dropout = {.attention = options.parallel ? p : c.attention_dropout, .mlp = p};
  c.attention_dropout = 0;  // with a rotary embedding transformers drops nothing there
  return c;
}

ModelConfig read_config(const Json& json) { return read_by_names(json, {{"n_embed", "hidden_size"}}, read_named); }

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  const auto options = std::any_cast<Options>(c.family_options);
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  auto mixer = std::make_unique<SelfAttention>(attention);
  auto mlp = std::make_unique<PlainMLP>(mlp_options(c));
  if (!options.parallel) return std::make_unique<LlamaBlock>(c, std::move(mixer), std::move(mlp));
  return std::make_unique<ParallelBlock>(c, std::move(mixer), std::move(mlp),
                                         ParallelBlockOptions{.two_norms = options.two_norms, .joint_dropout = true});
}

TensorRules tensor_rules(const ModelConfig& c) {
  const std::string theirs = "transformer.h.*.", layer = "model.layers.*.";
  TensorRules rules = {packed_heads(theirs + "self_attention.query_key_value", layer + "self_attn", c),
                       TensorRule::rename(theirs + "self_attention.dense", layer + "self_attn.o_proj"),
                       TensorRule::rename(theirs + "self_attention", layer + "self_attn"),
                       TensorRule::rename(theirs + "mlp.dense_h_to_4h", layer + "mlp.up_proj"),
                       TensorRule::rename(theirs + "mlp.dense_4h_to_h", layer + "mlp.down_proj"),
                       TensorRule::rename(theirs + "mlp.act", layer + "mlp.act_fn")};
  if (std::any_cast<Options>(c.family_options).two_norms) {
    rules.push_back(TensorRule::rename(theirs + "ln_attn", layer + "input_layernorm"));
    rules.push_back(TensorRule::rename(theirs + "ln_mlp", layer + "post_attention_layernorm"));
  }
  for (const auto& [from, to] :
       {std::pair("transformer.h", "model.layers"), std::pair("transformer.word_embeddings", "model.embed_tokens"),
        std::pair("transformer.ln_f", "model.norm")}) {
    rules.push_back(TensorRule::rename(from, to));
  }
  return rules;
}

TensorRules gguf_rules(const ModelConfig& c) {
  TensorRules rules = {gguf_packed_attention()};
  if (std::any_cast<Options>(c.family_options).two_norms) {
    rules.push_back(TensorRule::rename("blk.*.attn_norm_2", "model.layers.*.input_layernorm"));
    rules.push_back(TensorRule::rename("blk.*.attn_norm", "model.layers.*.post_attention_layernorm"));
  }
  return with_gguf_decoder_rules(std::move(rules));
}

void gguf_extend(const GgufFile& file, const std::string&, nlohmann::ordered_json& config) {
  const bool two_norms = file.has_tensor("blk.0.attn_norm_2.weight"),
             newer = two_norms || config.at("num_key_value_heads") != 1;
  config["activation"] = "gelu";  // implied there, as are the next
  config["parallel_attn"] = true;
  config["bias"] = config["alibi"] = false;
  config["new_decoder_architecture"] = newer;
  config["multi_query"] = !newer;
  if (newer) config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  rename_gguf_keys(config, {{"num_key_value_heads", "num_kv_heads"}, {"intermediate_size", "ffn_hidden_size"}});
}

const RegisteredFamily kFamily({.model_type = "falcon",
                                .class_name = "FalconForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .module_names = tensor_rules,
                                .gguf_architecture = "falcon",
                                .gguf_rules = gguf_rules,
                                .gguf_norm_eps = "layer_norm_epsilon",
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::falcon
