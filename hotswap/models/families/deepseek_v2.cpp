// DeepSeek-V2: Llama's block with latent attention, and after the first layers mixtures of experts, of which a token
// may choose groups first.
#include "hotswap/models/families/deepseek_v2.h"

#include <algorithm>
#include <cmath>

#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/deepseek_mixture.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap {

// head_dim of the config is that of the rotary part.
ModelConfig read_deepseek_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim_key = "qk_rope_head_dim", .head_dim = 64});
  check_layer_types(c, json);
  LatentAttentionOptions options{.hidden_size = c.hidden_size,
                                 .num_heads = c.num_attention_heads,
                                 .kv_lora_rank = positive(json, "kv_lora_rank", 512),
                                 .qk_nope_head_dim = positive(json, "qk_nope_head_dim", 128),
                                 .qk_rope_head_dim = c.head_dim,
                                 .v_head_dim = positive(json, "v_head_dim", 128),
                                 .bias = c.attention_bias,
                                 .dropout = c.attention_dropout};
  const bool direct = json.raw().contains("q_lora_rank") && !json.has("q_lora_rank");  // null
  if (!direct) options.q_lora_rank = positive(json, "q_lora_rank", 1536);
  if (c.num_key_value_heads != c.num_attention_heads) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("num_key_value_heads ", c.num_attention_heads, ": each head has keys of its own"),
                 .got = cat(c.num_key_value_heads, " in ", json.where()),
                 .next = "set num_key_value_heads to num_attention_heads"});
  }
  const RopeParameters& rope = c.rope_parameters;
  if (rope.type != "default" && rope.mscale_all_dim != 0) {
    const double stretch = yarn_mscale(rope.factor, rope.mscale_all_dim);
    const auto head_dim = static_cast<double>(options.qk_nope_head_dim + options.qk_rope_head_dim);
    options.scale = std::pow(head_dim, -0.5) * stretch * stretch;
  }
  c.family_options = options;
  return c;
}

LatentAttentionOptions latent_attention_options(const ModelConfig& c, int64_t layer) {
  auto options = std::any_cast<LatentAttentionOptions>(c.family_options);
  options.layer = layer;
  return options;
}

}  // namespace hotswap

namespace hotswap::deepseek_v2 {
namespace {

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_deepseek_config(json);
  const auto method = json.get<std::string>("topk_method", "greedy");
  const bool grouped = method == "group_limited_greedy";
  refuse_if(!grouped && method != "greedy", json, cat("a topk_method of ", method));
  read_deepseek_mixtures(c, json,
                         {.first_dense = 0,
                          .groups = 1,
                          .top_groups = 1,
                          .scale = 1,
                          .shared_experts = 2,
                          .renormalize = false,
                          .group_votes = 1});
  const auto& sparse = c.mixture.sparse;
  const bool mixes = std::find(sparse.begin(), sparse.end(), true) != sparse.end();
  refuse_if(mixes && c.mixture.norm_topk_prob, json, "norm_topk_prob");  // transformers drops it
  refuse_if(mixes && c.mlp_bias, json, "mlp_bias beside experts");
  if (!grouped) c.mixture.n_group = c.mixture.topk_group = 1;
  c.rotates_in_float32 = true;
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  LatentAttentionOptions attention = latent_attention_options(c, layer);
  attention.rotary_order = RotaryOrder::kInterleaved;
  MixtureOptions mixture = deepseek_mixture(c);
  mixture.router.group_votes = 1;
  return mixture_block(c, std::make_unique<LatentAttention>(attention), mixture, layer);
}

}  // namespace

const RegisteredFamily kDeepseekV2({.model_type = "deepseek_v2",
                                    .class_name = "DeepseekV2ForCausalLM",
                                    .read_config = read_config,
                                    .make_block = make_block,
                                    .tensor_rules = separate_experts,
                                    .own_parameter_order = true});

}  // namespace hotswap::deepseek_v2
