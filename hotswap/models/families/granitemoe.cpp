// Granite-MoE: Granite with a mixture of experts in every layer.
#include "hotswap/models/families/granite.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap {

MixtureOptions granite_mixture(const ModelConfig& c) {
  MixtureOptions mixture = mixture_options(c);
  mixture.router.scoring = Scoring::kSoftmaxOfChosen;
  mixture.router.widens_logits = true;
  mixture.router_name = "router";
  return mixture;
}

TensorRules granite_expert_rules() {
  const std::string part = "model.layers.*.block_sparse_moe.";
  return {TensorRule::rename(part + "input_linear.weight", part + "experts.gate_up_proj"),
          TensorRule::rename(part + "output_linear.weight", part + "experts.down_proj"),
          TensorRule::rename(part + "router.layer", part + "router")};
}

TensorRules gguf_granite_rules(const ModelConfig& c) {
  TensorRules rules = gguf_expert_rules({}, "router", "block_sparse_moe");
  const TensorRules rotated = gguf_interleaved_rules(c);
  rules.insert(rules.begin(), rotated.begin(), rotated.begin() + 2);  // queries and keys
  return rules;
}

}  // namespace hotswap

namespace hotswap::granitemoe {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.norm_eps = 1e-6});
  check_layer_types(c, json);
  read_granite_multipliers(c, json);
  c.mixture = read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size", .num_experts_per_tok = 2});
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  return mixture_block(c, attention, granite_mixture(c), layer, "block_sparse_moe");
}

TensorRules tensor_rules(const ModelConfig&) { return granite_expert_rules(); }

std::vector<std::string> gguf_keys() {
  std::vector<std::string> keys = gguf_granite_keys();
  keys.emplace_back("expert_count");
  return keys;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_granite(file, prefix, config);
  gguf_extend_experts(file, prefix, config, {.experts = "num_local_experts", .hidden = "intermediate_size"});
}

const RegisteredFamily kFamily({.model_type = "granitemoe",
                                .class_name = "GraniteMoeForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .gguf_architecture = "granitemoe",
                                .gguf_rules = gguf_granite_rules,
                                .gguf_head_dim_is_rotary = true,
                                .gguf_reads = gguf_keys(),
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::granitemoe
