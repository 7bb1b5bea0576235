// Gemma: Llama's block with norms that keep weight - 1.
#include "hotswap/models/families/gemma.h"

#include <ATen/ops/sub.h>

#include <cmath>

#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap {

ModelConfig read_gemma_config(const Json& json, ConfigDefaults defaults) {
  defaults.head_dim = 256;
  defaults.heads_may_lack = false;
  defaults.activation = "gelu_pytorch_tanh";
  defaults.tie_word_embeddings = true;
  ModelConfig c = read_decoder_config(json, defaults);
  c.norm_offset = 1;
  c.norm_casting = "gemma";
  c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  c.rounds_embedding_multiplier = true;
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  return c;
}

bool sees_both_sides(const Json& json) { return json.get<bool>("use_bidirectional_attention", false); }

TensorRules gemma_gguf_rules(const std::vector<std::pair<const char*, const char*>>& norms) {
  const auto less_one = [](const at::Tensor& weight) { return at::sub(weight, 1); };
  TensorRules rules = {TensorRule::rename("output_norm", "model.norm", less_one)};
  for (const auto& [theirs, ours] : norms) {
    rules.push_back(TensorRule::rename(cat("blk.*.", theirs), cat("model.layers.*.", ours), less_one));
  }
  rules.insert(rules.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return rules;
}

}  // namespace hotswap

namespace hotswap::gemma {
namespace {

ModelConfig read_config(const Json& json) {
  refuse_if(sees_both_sides(json), json, "use_bidirectional_attention");
  ModelConfig c = read_gemma_config(json, {});
  check_layer_types(c, json);
  return c;
}

TensorRules gguf_rules(const ModelConfig&) {
  return gemma_gguf_rules({{"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"}});
}

void gguf_extend(const GgufFile&, const std::string&, nlohmann::ordered_json& config) {
  config["hidden_act"] = "gelu_pytorch_tanh";  // implied there
}

}  // namespace

const RegisteredFamily kGemma({.model_type = "gemma",
                               .class_name = "GemmaForCausalLM",
                               .read_config = read_config,
                               .make_block = make_llama_block,
                               .gguf_architecture = "gemma",
                               .gguf_rules = gguf_rules,
                               .gguf_extend = gguf_extend});

}  // namespace hotswap::gemma
