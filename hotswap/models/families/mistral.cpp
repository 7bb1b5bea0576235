// Mistral: Llama's block without biases, and a window on every layer unless the config says null. llama.cpp keeps its
// models as "llama".
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::mistral {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false});
  c.sliding_window = read_sliding_window(json, 4096);
  if (c.sliding_window > 0) c.layer_types.assign(c.num_hidden_layers, "sliding_attention");
  check_layer_types(c, json);
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<LlamaBlock>(c, attention_options(c, layer));
}

}  // namespace

const RegisteredFamily kMistral({.model_type = "mistral",
                                 .class_name = "MistralForCausalLM",
                                 .read_config = read_config,
                                 .make_block = make_block,
                                 .make_fused_step = make_fused_decoder_step});

}  // namespace hotswap::mistral
