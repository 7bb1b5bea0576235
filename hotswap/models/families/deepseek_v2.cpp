// DeepSeek-V2: Llama's block with latent attention, and after the first layers mixtures of experts, of which a token
// may choose groups first.
#include "hotswap/models/families/deepseek_v2.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
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

namespace {

// llama.cpp has the part that makes keys transposed, a head at a time, apart from that of values.
// parts: [heads, rank, nope], [heads, value, rank] -> [heads * (nope + value), rank]
std::vector<int64_t> shape_of_both(const std::vector<std::vector<int64_t>>& parts) {
  if (parts[0].size() == 3 && parts[1].size() == 3 && parts[0][0] == parts[1][0] && parts[0][1] == parts[1][2]) {
    return {parts[0][0] * (parts[0][2] + parts[1][1]), parts[0][1]};
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "attn_k_b of [heads, rank, width of a key] and attn_v_b of [heads, width of a value, rank]",
               .got = cat("[", join(parts[0]), "] and [", join(parts[1]), "]"),
               .next = "fetch the file again: it is damaged"});
}

at::Tensor both(const std::vector<at::Tensor>& parts, at::ScalarType dtype) {
  return at::cat({parts[0].transpose(1, 2), parts[1]}, 1).flatten(0, 1).to(dtype).contiguous();
}

}  // namespace

TensorRules gguf_deepseek_rules(const ModelConfig& c) {
  const std::string part = "model.layers.*.self_attn.";
  TensorRules rules = {TensorRule::decode({"blk.*.attn_k_b.weight", "blk.*.attn_v_b.weight"}, part + "kv_b_proj.weight",
                                          {.shape = shape_of_both, .tensor = both}),
                       TensorRule::rename("blk.*.attn_kv_b", part + "kv_b_proj"),  // in older files
                       TensorRule::rename("blk.*.attn_kv_a_mqa", part + "kv_a_proj_with_mqa"),
                       TensorRule::rename("blk.*.attn_kv_a_norm", part + "kv_a_layernorm"),
                       TensorRule::rename("blk.*.attn_q_a", part + "q_a_proj"),
                       TensorRule::rename("blk.*.attn_q_a_norm", part + "q_a_layernorm"),
                       TensorRule::rename("blk.*.attn_q_b", part + "q_b_proj")};
  const TensorRules others = gguf_deepseek_mixture_rules(c);
  rules.insert(rules.begin(), others.front());  // layers beyond the model's
  rules.insert(rules.end(), others.begin() + 1, others.end());
  return rules;
}

std::vector<std::string> gguf_deepseek_keys() {
  std::vector<std::string> keys = gguf_deepseek_mixture_keys();
  for (const char* key : {"attention.kv_lora_rank", "attention.q_lora_rank", "attention.key_length_mla",
                          "attention.value_length_mla", "rope.scaling.yarn_log_multiplier"}) {
    keys.emplace_back(key);
  }
  return keys;
}

void gguf_extend_deepseek(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_deepseek_mixtures(file, prefix, config);
  const std::string attention = prefix + "attention.";
  // With keys and values of all heads absorbed, the plain ones are of the latent vector.
  const auto width = [&](const std::string& key) {
    return file.at<int64_t>(attention + key + (file.has(attention + key + "_mla") ? "_mla" : ""));
  };
  const auto rotated = config.at("head_dim").get<int64_t>();
  config["num_key_value_heads"] = config.at("num_attention_heads");
  config["kv_lora_rank"] = file.at<int64_t>(attention + "kv_lora_rank");
  config["q_lora_rank"] = nullptr;
  if (file.has(attention + "q_lora_rank")) config["q_lora_rank"] = file.at<int64_t>(attention + "q_lora_rank");
  config["qk_rope_head_dim"] = rotated;
  config["qk_nope_head_dim"] = width("key_length") - rotated;
  config["v_head_dim"] = width("value_length");
  const std::string multiplier = prefix + "rope.scaling.yarn_log_multiplier";
  if (!file.has(multiplier) || config.at("rope_scaling").is_null()) return;
  // llama.cpp's converter writes a tenth of mscale_all_dim, and takes mscale to be the same.
  config["rope_scaling"]["mscale"] = config["rope_scaling"]["mscale_all_dim"] = file.at<double>(multiplier) / 0.1;
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

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_deepseek(file, prefix, config);
  if (config.value("n_group", 1) > 1) config["topk_method"] = "group_limited_greedy";
}

bool gguf_is_own(const GgufFile& file, const std::string& prefix) { return !gguf_has_sigmoid_router(file, prefix); }

}  // namespace

const RegisteredFamily kDeepseekV2({.model_type = "deepseek_v2",
                                    .class_name = "DeepseekV2ForCausalLM",
                                    .read_config = read_config,
                                    .make_block = make_block,
                                    .tensor_rules = separate_experts,
                                    .own_parameter_order = true,
                                    .gguf_architecture = "deepseek2",
                                    .gguf_rules = gguf_deepseek_rules,
                                    .gguf_latent_heads = true,
                                    .gguf_reads = gguf_deepseek_keys(),
                                    .gguf_extend = gguf_extend,
                                    .gguf_is_own = gguf_is_own});

}  // namespace hotswap::deepseek_v2
