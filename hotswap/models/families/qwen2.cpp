// Qwen2: Llama's block with biases on queries, keys and values; a window on the upper layers where the config asks.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::qwen2 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false});
  read_sliding_layers(c, json);
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = true;
  return std::make_unique<LlamaBlock>(c, attention);
}

}  // namespace

const RegisteredFamily kQwen2({.model_type = "qwen2",
                               .class_name = "Qwen2ForCausalLM",
                               .read_config = read_config,
                               .make_block = make_block,
                               .make_fused_step = make_fused_decoder_step,
                               .gguf_architecture = "qwen2"});

}  // namespace hotswap::qwen2
