// LFM2: short convolutions between gates in most layers, attention with norms of query and key heads in the others; a
// gated MLP after either.
#include <algorithm>
#include <string>

#include "hotswap/base/error.h"
#include "hotswap/layers/short_conv.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/family.h"

namespace hotswap::lfm2 {

constexpr const char* kConvolution = "conv";

void read_layers(ModelConfig& c, const Json& json) {
  if (json.has("layer_types")) {
    c.layer_types = read_mixed_layers(json, "layer_types", {kConvolution, "full_attention"});
    return check_layer_count(c, json);
  }
  if (!json.has("full_attn_idxs")) return;
  const auto attend = json.at<std::vector<int64_t>>("full_attn_idxs");
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (std::find(attend.begin(), attend.end(), i) == attend.end()) c.layer_types[i] = kConvolution;
  }
}

// Two thirds of what the config has, times a factor, rounded up to a multiple.
int64_t adjusted_width(int64_t width, const Json& json) {
  if (!flag(json, "block_auto_adjust_ff_dim", true)) return width;
  width = static_cast<int64_t>(2.0 * static_cast<double>(width) / 3.0);
  const double factor = positive_or_null(json, "block_ffn_dim_multiplier", 1);
  if (factor == 0) return width;
  const int64_t multiple = positive(json, "block_multiple_of", 256);
  width = static_cast<int64_t>(factor * static_cast<double>(width));
  return (width + multiple - 1) / multiple * multiple;
}

ModelConfig read_config(const Json& json) {
  const bool older = json.has("block_ff_dim");  // a name of earlier files, which wins
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false,
                                             .intermediate_size_key = older ? "block_ff_dim" : "intermediate_size",
                                             .tie_word_embeddings = true,
                                             .norm_eps_key = "norm_eps",
                                             .norm_eps = 1e-5,
                                             .rope = {.theta = 1e6}});
  c.tie_word_embeddings = json.get<bool>("tie_embedding", c.tie_word_embeddings);
  c.intermediate_size = adjusted_width(c.intermediate_size, json);
  c.hidden_act = "silu";  // transformers ignores keys of these four
  c.attention_bias = c.mlp_bias = false;
  c.attention_dropout = 0;
  read_layers(c, json);
  c.family_options = ShortConvOptions{
      .hidden_size = c.hidden_size, .width = positive(json, "conv_L_cache", 3), .bias = flag(json, "conv_bias", false)};
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  auto mlp = std::make_unique<GatedMLP>(mlp_options(c));
  if (c.layer_types.at(layer) == kConvolution) {
    auto options = std::any_cast<ShortConvOptions>(c.family_options);
    options.layer = layer;
    return std::make_unique<LlamaBlock>(c, std::make_unique<ShortConv>(options), std::move(mlp), "feed_forward",
                                        "conv");
  }
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qk_norm = c.norm();
  return std::make_unique<LlamaBlock>(c, std::make_unique<SelfAttention>(attention), std::move(mlp), "feed_forward");
}

TensorRules module_names(const ModelConfig&) {
  const std::string layer = "model.layers.*.";
  TensorRules rules = {TensorRule::rename("model.embedding_norm", "model.norm")};
  const std::pair<const char*, const char*> names[] = {
      {"operator_norm", "input_layernorm"},          {"ffn_norm", "post_attention_layernorm"},
      {"feed_forward.w1", "feed_forward.gate_proj"}, {"feed_forward.w3", "feed_forward.up_proj"},
      {"feed_forward.w2", "feed_forward.down_proj"}, {"self_attn.out_proj", "self_attn.o_proj"},
      {"self_attn.q_layernorm", "self_attn.q_norm"}, {"self_attn.k_layernorm", "self_attn.k_norm"},
  };
  for (const auto& [theirs, ours] : names) rules.push_back(TensorRule::rename(layer + theirs, layer + ours));
  return rules;
}

const RegisteredFamily kFamily({.model_type = "lfm2",
                                .class_name = "Lfm2ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = module_names,
                                .module_names = module_names});

}  // namespace hotswap::lfm2
