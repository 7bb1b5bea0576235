// GPT-2: LayerNorms, a learned embedding of positions, an MLP without a gate, and matrices stored with rows and columns
// exchanged, queries, keys and values as one.
#include <cmath>

#include "hotswap/layers/plain_mlp.h"
#include "hotswap/models/config_names.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::gpt2 {

struct Scores {
  bool scale = true, by_layer = false;  // head_dim^-0.5; divided by the layer's number, from 1
};

ModelConfig read_named(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim_key = "",
                                             .grouped_heads = false,
                                             .intermediate_size_key = "n_inner",
                                             .intermediate_times = 4,
                                             .activation_key = "activation_function",
                                             .activation = "gelu_new",
                                             .tie_word_embeddings = true,
                                             .norm_eps_key = "layer_norm_epsilon",
                                             .norm_eps = 1e-5,
                                             .rotary = false});
  check_layer_types(c, json);
  refuse_if(json.get<bool>("add_cross_attention", false), json, "add_cross_attention");
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.position_embeddings = c.rope_parameters.max_position_embeddings;
  c.no_rope_layers.assign(c.num_hidden_layers, 0);
  c.attention_bias = c.mlp_bias = true;
  c.attention_dropout = read_dropout(json, "attn_pdrop", 0.1);
  const double p = read_dropout(json, "resid_pdrop", 0.1);
  c.residual_dropout = {.embedding = read_dropout(json, "embd_pdrop", 0.1), .attention = p, .mlp = p};
  c.family_options = Scores{.scale = flag(json, "scale_attn_weights", true),
                            .by_layer = json.get<bool>("scale_attn_by_inverse_layer_idx", false)};
  return c;
}

ModelConfig read_config(const Json& json) {
  return read_by_names(json,
                       {{"n_embd", "hidden_size"},
                        {"n_layer", "num_hidden_layers"},
                        {"n_head", "num_attention_heads"},
                        {"n_positions", "max_position_embeddings"}},
                       read_named);
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  const auto scores = std::any_cast<Scores>(c.family_options);
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = true;
  attention.scale = scores.scale ? std::pow(static_cast<double>(c.head_dim), -0.5) : 1.0;
  if (scores.by_layer) *attention.scale /= static_cast<double>(layer + 1);
  return std::make_unique<LlamaBlock>(c, std::make_unique<SelfAttention>(attention),
                                      std::make_unique<PlainMLP>(mlp_options(c)));
}

// transformers saves "transformer.h.0..."; the files of the first models have no "transformer."
TensorRules tensor_rules(const ModelConfig&) {
  TensorRules rules;
  const std::string layer = "model.layers.*.", attention = layer + "self_attn.";
  for (const std::string prefix : {"transformer.", ""}) {
    const std::string theirs = prefix + "h.*.";
    rules.insert(
        rules.end(),
        {TensorRule::leave_out(theirs + "attn.bias"), TensorRule::leave_out(theirs + "attn.masked_bias"),
         TensorRule::transposed(theirs + "attn.c_attn",
                                {attention + "q_proj", attention + "k_proj", attention + "v_proj"}),
         TensorRule::transposed(theirs + "attn.c_proj", {attention + "o_proj"}),
         TensorRule::transposed(theirs + "mlp.c_fc", {layer + "mlp.up_proj"}),
         TensorRule::transposed(theirs + "mlp.c_proj", {layer + "mlp.down_proj"}),
         TensorRule::rename(theirs + "mlp.act", layer + "mlp.act_fn"),
         TensorRule::rename(theirs + "attn", layer + "self_attn"),
         TensorRule::rename(theirs + "ln_1", layer + "input_layernorm"),
         TensorRule::rename(theirs + "ln_2", layer + "post_attention_layernorm"),
         TensorRule::rename(prefix + "h", "model.layers"), TensorRule::rename(prefix + "wte", "model.embed_tokens"),
         TensorRule::rename(prefix + "wpe", "model.embed_positions"),
         TensorRule::rename(prefix + "ln_f", "model.norm")});
  }
  return rules;
}

TensorRules gguf_rules(const ModelConfig&) {
  return with_gguf_decoder_rules(
      {gguf_packed_attention(), TensorRule::rename("position_embd", "model.embed_positions")});
}

void gguf_extend(const GgufFile&, const std::string&, nlohmann::ordered_json& config) {
  config["activation_function"] = "gelu_new";  // implied there
  rename_gguf_keys(config, {{"hidden_size", "n_embd"},
                            {"num_hidden_layers", "n_layer"},
                            {"num_attention_heads", "n_head"},
                            {"max_position_embeddings", "n_positions"},
                            {"intermediate_size", "n_inner"}});
}

const RegisteredFamily kFamily({.model_type = "gpt2",
                                .class_name = "GPT2LMHeadModel",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .module_names = tensor_rules,
                                .gguf_architecture = "gpt2",
                                .gguf_rules = gguf_rules,
                                .gguf_norm_eps = "layer_norm_epsilon",
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::gpt2
