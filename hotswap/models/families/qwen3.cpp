// Qwen3: Llama's block with a norm on every query and key head; a window on the upper layers where the config asks.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::qwen3 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim = 128, .heads_may_lack = false});
  read_sliding_layers(c, json);
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = RMSNormOptions{.eps = c.rms_norm_eps};
  return std::make_unique<LlamaBlock>(c, attention);
}

}  // namespace

const RegisteredFamily kQwen3({.model_type = "qwen3",
                               .class_name = "Qwen3ForCausalLM",
                               .read_config = read_config,
                               .make_block = make_block,
                               .make_fused_step = make_fused_decoder_step,
                               .gguf_architecture = "qwen3"});

}  // namespace hotswap::qwen3
