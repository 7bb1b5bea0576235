// Qwen3-MoE: Qwen3's block with mixtures of experts in some layers; a window, where the config asks, is on every layer.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::qwen3_moe {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false});
  if (json.get<bool>("use_sliding_window", false)) c.sliding_window = read_sliding_window(json, 4096);
  if (c.sliding_window > 0) c.layer_types.assign(c.num_hidden_layers, "sliding_attention");
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  c.mixture = read_mixture_config(c.num_hidden_layers, json);
  c.mixture.norm_topk_prob = json.get<bool>("norm_topk_prob", false);
  read_sparse_layers(c.mixture, json);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = RMSNormOptions{.eps = c.rms_norm_eps};
  return mixture_block(c, attention, mixture_options(c), layer);
}

TensorRules gguf_rules(const ModelConfig&) { return gguf_expert_rules(); }

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_experts(file, prefix, config);
  config["norm_topk_prob"] = true;  // as llama.cpp computes, without a key for it
}

}  // namespace

const RegisteredFamily kQwen3Moe({.model_type = "qwen3_moe",
                                  .class_name = "Qwen3MoeForCausalLM",
                                  .read_config = read_config,
                                  .make_block = make_block,
                                  .tensor_rules = separate_experts,
                                  .own_parameter_order = true,
                                  .gguf_architecture = "qwen3moe",
                                  .gguf_rules = gguf_rules,
                                  .gguf_reads = {"expert_count", "expert_feed_forward_length"},
                                  .gguf_extend = gguf_extend});

}  // namespace hotswap::qwen3_moe
