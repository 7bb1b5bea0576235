// Phi-1, 1.5 and 2: one LayerNorm before attention and an MLP without a gate, which stand side by side; a part of each
// head turns; biases everywhere, of the output head too.
#include "hotswap/layers/plain_mlp.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/parallel_block.h"
#include "hotswap/models/family.h"

namespace hotswap::phi {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.activation = "gelu_new",
                                             .norm_eps_key = "layer_norm_eps",
                                             .norm_eps = 1e-5,
                                             .rope = {.may_be_partial = true, .partial = 0.5}});
  check_layer_types(c, json);
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.attention_bias = c.mlp_bias = c.head_bias = true;
  const double p = read_dropout(json, "resid_pdrop");
  c.residual_dropout = {.embedding = read_dropout(json, "embd_pdrop"), .attention = p, .mlp = p};
  c.use_qk_norm = json.get<bool>("qk_layernorm", false);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = true;
  if (c.use_qk_norm) attention.qk_layer_norm = c.layer_norm;
  return std::make_unique<ParallelBlock>(c, std::make_unique<SelfAttention>(attention),
                                         std::make_unique<PlainMLP>(mlp_options(c)), ParallelBlockOptions{});
}

TensorRules tensor_rules(const ModelConfig&) {
  const std::string layer = "model.layers.*.", attention = layer + "self_attn.", mlp = layer + "mlp.";
  return {TensorRule::rename(attention + "dense", attention + "o_proj"),
          TensorRule::rename(attention + "q_layernorm", attention + "q_norm"),
          TensorRule::rename(attention + "k_layernorm", attention + "k_norm"),
          TensorRule::rename(mlp + "fc1", mlp + "up_proj"),
          TensorRule::rename(mlp + "fc2", mlp + "down_proj"),
          TensorRule::rename(mlp + "activation_fn", mlp + "act_fn"),
          TensorRule::rename("model.final_layernorm", "model.norm")};
}

TensorRules gguf_rules(const ModelConfig&) { return with_gguf_decoder_rules({gguf_packed_attention()}); }

void gguf_extend(const GgufFile&, const std::string&, nlohmann::ordered_json& config) {
  config["hidden_act"] = "gelu_new";  // implied there
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
}

const RegisteredFamily kFamily({.model_type = "phi",
                                .class_name = "PhiForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .module_names = tensor_rules,
                                .gguf_architecture = "phi2",
                                .gguf_rules = gguf_rules,
                                .gguf_rotates_part = true,
                                .gguf_norm_eps = "layer_norm_eps",
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::phi
