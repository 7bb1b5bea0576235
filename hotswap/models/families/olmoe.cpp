// OLMoE: Llama's block with norms over all heads of queries and of keys together, and a mixture of experts in every
// layer.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::olmoe {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json);
  check_layer_types(c, json);
  refuse_if(json.has("clip_qkv"), json, "clip_qkv");
  c.mixture = read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size", .aux_loss_coef = 0.01});
  c.mixture.norm_topk_prob = json.get<bool>("norm_topk_prob", false);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = c.norm();
  attention.qk_norm_of_all_heads = true;
  return mixture_block(c, attention, mixture_options(c), layer);
}

TensorRules gguf_rules(const ModelConfig&) { return gguf_expert_rules(); }

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_experts(file, prefix, config, {.hidden = "intermediate_size"});
  config["norm_topk_prob"] = false;  // as llama.cpp computes, without a key for it
}

}  // namespace

const RegisteredFamily kOlmoe({.model_type = "olmoe",
                               .class_name = "OlmoeForCausalLM",
                               .read_config = read_config,
                               .make_block = make_block,
                               .tensor_rules = separate_experts,
                               .gguf_architecture = "olmoe",
                               .gguf_rules = gguf_rules,
                               .gguf_reads = {"expert_count"},
                               .gguf_extend = gguf_extend});

}  // namespace hotswap::olmoe
