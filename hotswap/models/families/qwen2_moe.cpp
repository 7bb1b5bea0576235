// Qwen2-MoE: Qwen2's block with mixtures of experts in some layers, beside them a gated part for all tokens.
#include <algorithm>

#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::qwen2_moe {
namespace {

// Where nothing else is said every other layer below max_window_layers slides.
void read_windows(ModelConfig& c, const Json& json) {
  if (json.has("layer_types")) return read_sliding_layers(c, json);
  if (!json.get<bool>("use_sliding_window", false)) return;
  c.sliding_window = read_sliding_window(json, 4096);
  const int64_t end = std::min(c.num_hidden_layers, json.get<int64_t>("max_window_layers", 28));
  for (int64_t i = 0; i < end && c.sliding_window > 0; i += 2) c.layer_types[i] = "sliding_attention";
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false});
  read_windows(c, json);
  c.attention_bias = flag(json, "qkv_bias", true);
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  c.mixture = read_mixture_config(c.num_hidden_layers, json);
  c.mixture.norm_topk_prob = json.get<bool>("norm_topk_prob", false);
  c.mixture.shared_expert_intermediate_size = positive(json, "shared_expert_intermediate_size");
  read_sparse_layers(c.mixture, json);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = c.attention_bias;
  MixtureOptions mixture = mixture_options(c);
  mixture.shared_gate = true;
  return mixture_block(c, attention, mixture, layer);
}

TensorRules gguf_rules(const ModelConfig&) {
  const std::string mlp = "model.layers.*.mlp.";
  TensorRules rules = gguf_expert_rules();
  rules.insert(rules.begin(), TensorRule::rename("blk.*.ffn_gate_inp_shexp", mlp + "shared_expert_gate"));
  for (const char* part : {"gate", "up", "down"}) {
    rules.insert(rules.begin(),
                 TensorRule::rename(cat("blk.*.ffn_", part, "_shexp"), cat(mlp, "shared_expert.", part, "_proj")));
  }
  return rules;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_experts(file, prefix, config);
  config["norm_topk_prob"] = false;  // as llama.cpp computes, without a key for it
  config["qkv_bias"] = config.at("attention_bias");
  config["shared_expert_intermediate_size"] = file.at<int64_t>(prefix + "expert_shared_feed_forward_length");
}

}  // namespace

const RegisteredFamily kQwen2Moe({.model_type = "qwen2_moe",
                                  .class_name = "Qwen2MoeForCausalLM",
                                  .read_config = read_config,
                                  .make_block = make_block,
                                  .tensor_rules = separate_experts,
                                  .gguf_architecture = "qwen2moe",
                                  .gguf_rules = gguf_rules,
                                  .gguf_reads = {"expert_count", "expert_feed_forward_length",
                                                 "expert_shared_feed_forward_length"},
                                  .gguf_extend = gguf_extend});

}  // namespace hotswap::qwen2_moe
