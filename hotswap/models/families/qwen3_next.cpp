// Qwen3-Next: the gated delta rule in three of four layers, in the fourth attention whose output has a gate and of
// whose heads a part turns; a mixture of experts beside a part for all tokens after either; norms that keep weight
// - 1.
#include "hotswap/models/families/qwen3_next.h"

#include "hotswap/base/error.h"
#include "hotswap/layers/gated_delta_net.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap {
namespace {

void read_gated_delta_layers(ModelConfig& c, const Json& json) {
  if (json.has("layer_types")) {
    c.layer_types = read_mixed_layers(json, "layer_types", {kRecurrentLayer, "full_attention"});
    return check_layer_count(c, json);
  }
  const int64_t interval = positive(json, "full_attention_interval", 4);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if ((i + 1) % interval != 0) c.layer_types[i] = kRecurrentLayer;
  }
}

GatedDeltaNetOptions read_gated_delta_net(const ModelConfig& c, const Json& json, bool packed) {
  const GatedDeltaNetOptions o{.hidden_size = c.hidden_size,
                               .key_heads = positive(json, "linear_num_key_heads", 16),
                               .key_dim = positive(json, "linear_key_head_dim", 128),
                               .heads = positive(json, "linear_num_value_heads", 32),
                               .value_dim = positive(json, "linear_value_head_dim", 128),
                               .conv_width = positive(json, "linear_conv_kernel_dim", 4),
                               .norm_eps = c.rms_norm_eps,
                               .packed = packed};
  if (o.heads % o.key_heads == 0) return o;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "linear_num_value_heads that is a multiple of linear_num_key_heads",
               .got = cat(o.heads, " and ", o.key_heads, " in ", json.where()),
               .next = "set both as the rows of the linear_attn projections have them"});
}

}  // namespace

ModelConfig read_gated_delta_config(const Json& json, bool packed, const char* intermediate_key) {
  ModelConfig c = read_decoder_config(json, {.head_dim = 256,
                                             .heads_may_lack = false,
                                             .intermediate_size_key = intermediate_key,
                                             .rope = {.may_be_partial = true, .partial = 0.25}});
  refuse_if(c.hidden_act != "silu", json, "a hidden_act other than silu");
  c.norm_offset = 1;
  c.norm_casting = "gemma";
  c.mlp_bias = false;  // transformers ignores the key
  read_gated_delta_layers(c, json);
  c.family_options = read_gated_delta_net(c, json, packed);
  c.mixture.sparse.assign(c.num_hidden_layers, false);
  return c;
}

void read_gated_delta_mixtures(ModelConfig& c, const Json& json) {
  c.mixture = read_mixture_config(c.num_hidden_layers, json);
  c.mixture.norm_topk_prob = true;
  c.mixture.shared_expert_intermediate_size = positive(json, "shared_expert_intermediate_size", 512);
}

std::unique_ptr<Block> make_gated_delta_block(const ModelConfig& c, int64_t layer) {
  std::unique_ptr<TokenMixer> mixer;
  if (recurs(c, layer)) {
    auto options = std::any_cast<GatedDeltaNetOptions>(c.family_options);
    options.layer = layer;
    mixer = std::make_unique<GatedDeltaNet>(options);
  } else {
    SelfAttentionOptions attention = attention_options(c, layer);
    attention.qkv_bias = attention.output_bias = c.attention_bias;
    attention.qk_norm = c.norm();
    attention.output_gate = true;
    mixer = std::make_unique<SelfAttention>(attention);
  }
  std::unique_ptr<FeedForward> part;
  if (c.mixture.sparse.at(layer)) {
    MixtureOptions mixture = mixture_options(c);
    mixture.shared_gate = true;
    part = std::make_unique<Mixture>(mixture);
  } else {
    part = std::make_unique<GatedMLP>(mlp_options(c));
  }
  return std::make_unique<LlamaBlock>(c, std::move(mixer), std::move(part), "mlp",
                                      recurs(c, layer) ? "linear_attn" : "self_attn");
}

TensorRules gated_delta_rules(const ModelConfig&) {
  TensorRules rules = expert_rules();
  rules.push_back(TensorRule::leave_out("mtp"));
  return rules;
}

}  // namespace hotswap

namespace hotswap::qwen3_next {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_gated_delta_config(json, /*packed=*/true);
  if (json.get<int64_t>("num_experts", 512) == 0) return c;
  read_gated_delta_mixtures(c, json);
  c.mixture.norm_topk_prob = flag(json, "norm_topk_prob", true);
  read_sparse_layers(c.mixture, json);
  return c;
}

const RegisteredFamily kFamily({.model_type = "qwen3_next",
                                .class_name = "Qwen3NextForCausalLM",
                                .read_config = read_config,
                                .make_block = make_gated_delta_block,
                                .tensor_rules = gated_delta_rules});

}  // namespace hotswap::qwen3_next
