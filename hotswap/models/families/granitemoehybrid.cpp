// Granite 4: Granite's multipliers over layers of Mamba-2 or attention, mostly without a rotary embedding, each with an
// MLP for all tokens and, in the larger models, a mixture of experts beside it.
#include "hotswap/base/error.h"
#include "hotswap/models/families/granite.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/families/mixed_block.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::granitemoehybrid {

void read_layers(ModelConfig& c, const Json& json) {
  c.layer_types.assign(c.num_hidden_layers, kRecurrentLayer);
  for (const char* key : {"layers_block_type", "layer_types"}) {
    if (json.has(key)) c.layer_types = read_mixed_layers(json, key, {kRecurrentLayer, "full_attention"});
  }
  check_layer_count(c, json);
}

// Without experts the part for all tokens is all that there is.
void read_feed_forward(ModelConfig& c, const Json& json) {
  if (json.has("num_local_experts") && json.at<int64_t>("num_local_experts") == 0) {
    c.mixture.sparse.assign(c.num_hidden_layers, false);
  } else {
    c.mixture =
        read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size", .num_experts_per_tok = 2});
  }
  c.mixture.shared_expert_intermediate_size = positive(json, "shared_intermediate_size", 1024);
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.norm_eps = 1e-6});
  read_granite_multipliers(c, json);
  read_layers(c, json);
  read_feed_forward(c, json);
  if (json.get<std::string>("position_embedding_type", "") != "rope") {
    c.rope_parameters = {};
    c.no_rope_layers.assign(c.num_hidden_layers, 0);
  }
  const auto& types = c.layer_types;
  if (std::find(types.begin(), types.end(), kRecurrentLayer) != types.end()) {
    read_bamba_mixer(c, json, bamba_channels(c, json));
  }
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  MixedBlockParts parts{.mixer = make_mixed_mixer(c, layer),
                        .mixer_name = recurs(c, layer) ? "mamba" : "self_attn",
                        .second_norm_name = "post_attention_layernorm"};
  if (c.mixture.sparse.at(layer)) {
    MixtureOptions mixture = granite_mixture(c);
    mixture.shared_name = "shared_mlp";
    parts.feed_forward = std::make_unique<Mixture>(mixture);
    parts.feed_forward_name = "block_sparse_moe";
  } else {
    GatedMLPOptions mlp = mlp_options(c);
    mlp.hidden = c.mixture.shared_expert_intermediate_size;
    mlp.bias = false;
    parts.feed_forward = std::make_unique<GatedMLP>(mlp);
    parts.feed_forward_name = "shared_mlp";
  }
  return std::make_unique<MixedBlock>(c, std::move(parts));
}

constexpr const char* kSharedTheirs = "model.layers.*.shared_mlp";

std::string shared_ours(const ModelConfig& c) {
  return c.mixture.sparse.front() ? "model.layers.*.block_sparse_moe.shared_mlp" : kSharedTheirs;
}

TensorRules tensor_rules(const ModelConfig& c) {
  const std::string theirs = kSharedTheirs, ours = shared_ours(c);
  TensorRules rules = granite_expert_rules();
  rules.push_back(TensorRule::split(theirs + ".input_linear", {ours + ".gate_proj", ours + ".up_proj"}));
  rules.push_back(TensorRule::rename(theirs + ".output_linear", ours + ".down_proj"));
  return rules;
}

TensorRules module_names(const ModelConfig& c) {
  const std::string theirs = kSharedTheirs, ours = shared_ours(c);
  return {TensorRule::rename(theirs + ".activation", ours + ".act_fn"),
          TensorRule::rename(theirs + ".output_linear", ours + ".down_proj"), TensorRule::rename(theirs, ours)};
}

TensorRules gguf_rules(const ModelConfig& c) {
  const std::string layer = "model.layers.*.", shared = shared_ours(c);
  TensorRules rules = gguf_mamba2_rules(layer + "mamba.");
  for (const char* part : {"gate", "up", "down"}) {
    const bool sparse = c.mixture.sparse.front();
    rules.push_back(
        TensorRule::rename(cat("blk.*.ffn_", part, sparse ? "_shexp" : ""), cat(shared, ".", part, "_proj")));
  }
  const TensorRules others = gguf_granite_rules(c);
  rules.insert(rules.end(), others.begin(), others.end());
  return rules;
}

std::vector<std::string> gguf_keys() {
  std::vector<std::string> keys = gguf_granite_keys();
  keys.insert(keys.end(), gguf_mamba2_keys().begin(), gguf_mamba2_keys().end());
  for (const char* key : {"expert_count", "expert_shared_feed_forward_length", "attention.head_count_kv"}) {
    keys.emplace_back(key);
  }
  return keys;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_granite(file, prefix, config);
  gguf_extend_bamba_mixer(file, prefix, config);
  for (const int64_t heads :
       gguf_of_each_layer(file, prefix + "attention.head_count_kv", config.at("num_hidden_layers").get<int64_t>())) {
    config["layer_types"].push_back(heads > 0 ? "attention" : "mamba");
  }
  config["num_local_experts"] = 0;
  config["shared_intermediate_size"] = config.at("intermediate_size");
  if (file.get<int64_t>(prefix + "expert_count", 0) > 0) {
    gguf_extend_experts(file, prefix, config, {.experts = "num_local_experts", .hidden = "intermediate_size"});
    config["shared_intermediate_size"] = file.at<int64_t>(prefix + "expert_shared_feed_forward_length");
  }
  const bool turns = file.get<bool>(prefix + "rope.scaling.finetuned", true);  // llama.cpp's switch for it
  config["position_embedding_type"] = turns ? "rope" : "nope";
}

// Bamba has the same architecture there.
bool gguf_is_own(const GgufFile& file, const std::string& prefix) { return file.has(prefix + "embedding_scale"); }

const RegisteredFamily kFamily({.model_type = "granitemoehybrid",
                                .class_name = "GraniteMoeHybridForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .own_parameter_order = true,
                                .module_names = module_names,
                                .gguf_architecture = "granitehybrid",
                                .gguf_rules = gguf_rules,
                                .gguf_head_dim_is_rotary = true,
                                .gguf_reads = gguf_keys(),
                                .gguf_extend = gguf_extend,
                                .gguf_is_own = gguf_is_own});

}  // namespace hotswap::granitemoehybrid
