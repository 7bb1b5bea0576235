// OLMo 1: Llama's block with LayerNorms that have no weight; queries, keys and values may be clipped.
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/family.h"

namespace hotswap::olmo {

struct Options {
  double clip_qkv = 0;
};

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.norm_eps_key = "", .norm_eps = 1e-5});
  check_layer_types(c, json);
  c.mlp_bias = false;  // transformers ignores the key
  c.layer_norm = LayerNormOptions{.eps = c.rms_norm_eps, .weight = false, .bias = false};
  c.rotates_in_float32 = true;
  c.family_options = Options{.clip_qkv = positive_or_null(json, "clip_qkv", 0)};
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.clip_qkv = std::any_cast<Options>(c.family_options).clip_qkv;
  return std::make_unique<LlamaBlock>(c, std::make_unique<SelfAttention>(attention),
                                      std::make_unique<GatedMLP>(mlp_options(c)));
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  const double eps = config.at("layer_norm_eps").get<double>();
  if (std::abs(eps - 1e-5) > 1e-8) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat(prefix, "attention.layer_norm_epsilon of 1e-5, as transformers' class has it"),
                 .got = cat(eps, " in ", file.path().string()),
                 .next = "take the model's safetensors checkpoint with its config.json"});
  }
  config.erase("layer_norm_eps");
  if (file.has(prefix + "attention.clamp_kqv")) config["clip_qkv"] = file.at<double>(prefix + "attention.clamp_kqv");
}

const RegisteredFamily kFamily({.model_type = "olmo",
                                .class_name = "OlmoForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .gguf_architecture = "olmo",
                                .gguf_rules = gguf_interleaved_rules,
                                .gguf_norm_eps = "layer_norm_eps",
                                .gguf_reads = {"attention.clamp_kqv"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::olmo
