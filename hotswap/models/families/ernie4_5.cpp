// Ernie 4.5, its dense models: Llama's block with an interleaved rotary embedding; one switch for all biases.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::ernie4_5 {

ModelConfig read_config(const Json& json) {
  // head_dim null: hidden_size / num_attention_heads
  const bool divided = json.raw().contains("head_dim") && !json.has("head_dim");
  ModelConfig c = read_decoder_config(json, {.head_dim = divided ? std::nullopt : std::optional<int64_t>(128),
                                             .tie_word_embeddings = true,
                                             .norm_eps = 1e-5,
                                             .rope = {.theta = 500000}});
  check_layer_types(c, json);
  c.attention_bias = c.mlp_bias = json.get<bool>("use_bias", false);
  c.attention_dropout = 0;  // transformers ignores the key
  c.rotates_in_float32 = true;
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.interleaved_rotary = true;
  return std::make_unique<LlamaBlock>(c, attention);
}

void gguf_extend(const GgufFile&, const std::string&, nlohmann::ordered_json& config) {
  config["use_bias"] = config.at("attention_bias");
}

const RegisteredFamily kFamily({.model_type = "ernie4_5",
                                .class_name = "Ernie4_5ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .make_fused_step = make_fused_decoder_step,
                                .gguf_architecture = "ernie4_5",
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::ernie4_5
