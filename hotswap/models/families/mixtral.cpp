// Mixtral: Mistral's block with a mixture of experts in every layer. A token's weights sum to 1 and stay float32.
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::mixtral {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false, .rope = {.theta = 1e6}});
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  c.sliding_window = json.has("sliding_window") ? read_sliding_window(json, 0) : 0;
  if (c.sliding_window > 0) c.layer_types.assign(c.num_hidden_layers, "sliding_attention");
  check_layer_types(c, json);
  c.mixture = read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size"});
  c.mixture.norm_topk_prob = true;
  c.mixture.router_jitter_noise = json.get<double>("router_jitter_noise", 0);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  MixtureOptions mixture = mixture_options(c);
  mixture.router.float32_weights = true;
  return mixture_block(c, attention_options(c, layer), mixture, layer);
}

TensorRules tensor_rules(const ModelConfig&) {
  TensorRules rules = expert_rules({.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
  rules.push_back(TensorRule::rename("model.layers.*.block_sparse_moe.gate", "model.layers.*.mlp.gate"));
  return rules;
}

TensorRules gguf_rules(const ModelConfig& c) {
  TensorRules rules = gguf_expert_rules();
  const TensorRules rotated = gguf_interleaved_rules(c);
  rules.insert(rules.begin(), rotated.begin(), rotated.begin() + 2);  // queries and keys
  return rules;
}

// Llama's architecture, with experts.
void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_experts(file, prefix, config, {.experts = "num_local_experts", .hidden = "intermediate_size"});
}

}  // namespace

const RegisteredFamily kMixtral({.model_type = "mixtral",
                                 .class_name = "MixtralForCausalLM",
                                 .read_config = read_config,
                                 .make_block = make_block,
                                 .tensor_rules = tensor_rules,
                                 .gguf_architecture = "llama",
                                 .gguf_rules = gguf_rules,
                                 .gguf_head_dim_is_rotary = true,
                                 .gguf_reads = {"expert_count", "expert_feed_forward_length"},
                                 .gguf_extend = gguf_extend});

}  // namespace hotswap::mixtral
