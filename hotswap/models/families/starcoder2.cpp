// StarCoder2: Llama's block with LayerNorms, an MLP without a gate, and biases; an optional window on every layer.
#include "hotswap/layers/plain_mlp.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::starcoder2 {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false,
                                             .activation = "gelu_pytorch_tanh",
                                             .tie_word_embeddings = true,
                                             .norm_eps_key = "norm_epsilon",
                                             .norm_eps = 1e-5});
  if (json.has("sliding_window")) c.sliding_window = read_sliding_window(json, 0);
  if (c.sliding_window > 0) c.layer_types.assign(c.num_hidden_layers, "sliding_attention");
  check_layer_types(c, json);
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps};
  c.attention_bias = c.mlp_bias = flag(json, "use_bias", true);
  c.initializer_range = json.get<double>("initializer_range", 0.018042);
  const double p = read_dropout(json, "residual_dropout");
  c.residual_dropout = {.embedding = read_dropout(json, "embedding_dropout"), .attention = p, .mlp = p};
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  return std::make_unique<LlamaBlock>(c, std::make_unique<SelfAttention>(attention),
                                      std::make_unique<PlainMLP>(mlp_options(c)));
}

TensorRules tensor_rules(const ModelConfig&) {
  const std::string mlp = "model.layers.*.mlp.";
  return {TensorRule::rename(mlp + "c_fc", mlp + "up_proj"), TensorRule::rename(mlp + "c_proj", mlp + "down_proj"),
          TensorRule::rename(mlp + "act", mlp + "act_fn")};
}

TensorRules gguf_rules(const ModelConfig&) { return with_gguf_decoder_rules({gguf_packed_attention()}); }

void gguf_extend(const GgufFile& file, const std::string&, nlohmann::ordered_json& config) {
  config["hidden_act"] = "gelu_pytorch_tanh";  // implied there
  config["use_bias"] = file.has_tensor("blk.0.attn_output.bias");
}

const RegisteredFamily kFamily({.model_type = "starcoder2",
                                .class_name = "Starcoder2ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .module_names = tensor_rules,
                                .gguf_architecture = "starcoder2",
                                .gguf_rules = gguf_rules,
                                .gguf_norm_eps = "norm_epsilon",
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::starcoder2
