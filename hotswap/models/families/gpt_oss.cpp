// gpt-oss: biases everywhere, a sink in every head's softmax, a window on every other layer, and in each layer a
// mixture of experts with a clamped activation. Published checkpoints hold the experts as MXFP4.
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/mxfp4.h"

namespace hotswap::gpt_oss {
namespace {

// A config without rotary parameters has these, as transformers' class has them.
Json with_rope_parameters(const Json& json) {
  if (json.has("rope_parameters") || json.has("rope_scaling")) return json;
  nlohmann::ordered_json config = json.raw();
  config["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                               {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  return Json::parse(config.dump(), json.where());
}

ModelConfig read_config(const Json& given) {
  const Json json = with_rope_parameters(given);
  ModelConfig c = read_decoder_config(
      json, {.head_dim = 64, .heads_may_lack = false, .rope = {.theta = 150000}, .reads_mxfp4 = true});
  c.attention_bias = flag(json, "attention_bias", true);
  c.norm_casting = "gemma";  // but not its offset
  c.sliding_window = read_sliding_window(json, 128);
  if (json.has("layer_types")) {
    c.layer_types = read_layer_types(c, json);
  } else if (c.sliding_window > 0) {
    for (int64_t i = 0; i < c.num_hidden_layers; i += 2) c.layer_types[i] = "sliding_attention";
  }
  c.mixture = read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size"});
  c.mixture.swiglu_alpha = positive_number(json, "swiglu_alpha", 1.702);
  c.mixture.swiglu_limit = positive_number(json, "swiglu_limit", 7.0);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.sinks = true;
  MixtureOptions mixture = mixture_options(c);
  mixture.router.scoring = Scoring::kSoftmaxOfChosen;
  mixture.router.bias = mixture.bias = true;
  mixture.router_name = "router";
  mixture.layer = "MegaBlocksMoeMLP";
  mixture.experts = {.activation = "swiglu_oai",
                     .alpha = c.mixture.swiglu_alpha,
                     .limit = c.mixture.swiglu_limit,
                     .interleaved = true,
                     .transposed = true};
  return mixture_block(c, attention, mixture, layer);
}

TensorRules tensor_rules(const ModelConfig&) {
  TensorRules rules;
  for (const char* name : {"gate_up_proj", "down_proj"}) {
    const std::string weight = cat("model.layers.*.mlp.experts.", name);
    rules.push_back(TensorRule::decode({weight + "_blocks", weight + "_scales"}, weight, mxfp4()));
  }
  return rules;
}

TensorRules gguf_rules(const ModelConfig&) {
  TensorRules rules = gguf_expert_rules({.interleaved = true, .transposed = true}, "router");
  rules.insert(rules.begin(),
               {TensorRule::rename("blk.*.attn_sinks.weight", "model.layers.*.self_attn.sinks"),
                TensorRule::rename("blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm")});
  return rules;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_experts(file, prefix, config, {.experts = "num_local_experts", .hidden = "intermediate_size"});
  config["sliding_window"] = file.at<int64_t>(prefix + "attention.sliding_window");
  if (config["rope_scaling"].is_object()) config["rope_scaling"]["truncate"] = false;  // as the model has it
}

// Of the kernel for its experts: there it is one for the whole mixture.
TensorRules module_names(const ModelConfig&) {
  return {TensorRule::rename("model.layers.*.mlp", "model.layers.*.mlp.experts")};
}

}  // namespace

const RegisteredFamily kGptOss({.model_type = "gpt_oss",
                                .class_name = "GptOssForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .module_names = module_names,
                                .gguf_architecture = "gpt-oss",
                                .gguf_rules = gguf_rules,
                                .gguf_reads = {"expert_count", "expert_feed_forward_length",
                                               "attention.sliding_window"},
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::gpt_oss
