// Bamba: Mamba-2's mixer in most layers, attention in the others, whose heads turn in part; an MLP after either.
#include "hotswap/base/error.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/families/mixed_block.h"
#include "hotswap/models/family.h"

namespace hotswap::bamba {

void read_layers(ModelConfig& c, const Json& json) {
  c.layer_types.assign(c.num_hidden_layers, kRecurrentLayer);
  for (const int64_t layer : json.get<std::vector<int64_t>>("attn_layer_indices", {})) {
    if (layer < 0 || layer >= c.num_hidden_layers) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("attn_layer_indices from 0 to below num_hidden_layers, ", c.num_hidden_layers),
                   .got = cat(layer, " in ", json.where()),
                   .next = "list the layers that have attention"});
    }
    c.layer_types[layer] = "full_attention";
  }
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(
      json, {.heads_may_lack = false, .norm_eps = 1e-5, .rope = {.may_be_partial = true, .partial = 0.5}});
  // transformers overwrites it with a half; the one in rope_parameters counts.
  refuse_if(json.get<double>("partial_rotary_factor", 0.5) != 0.5, json,
            "a partial_rotary_factor other than 0.5, outside rope_parameters");
  read_layers(c, json);
  read_bamba_mixer(c, json, bamba_channels(c, json));
  c.z_loss_coefficient = json.get<double>("z_loss_coefficient", 0);
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<MixedBlock>(c, MixedBlockParts{.mixer = make_mixed_mixer(c, layer),
                                                         .feed_forward = std::make_unique<GatedMLP>(mlp_options(c)),
                                                         .mixer_name = recurs(c, layer) ? "mamba" : "self_attn"});
}

TensorRules module_names(const ModelConfig&) { return {TensorRule::rename("model.final_layernorm", "model.norm")}; }

TensorRules gguf_rules(const ModelConfig& c) {
  const std::string layer = "model.layers.*.";
  TensorRules rules = gguf_mamba2_rules(layer + "mamba.");
  rules.push_back(TensorRule::rename("blk.*.ffn_norm", layer + "pre_ff_layernorm"));
  for (const char* part : {"gate", "up", "down"}) {
    rules.push_back(TensorRule::rename(cat("blk.*.ffn_", part), cat(layer, "feed_forward.", part, "_proj")));
  }
  const TensorRules others = gguf_interleaved_rules(c);
  rules.insert(rules.end(), others.begin(), others.end());
  return rules;
}

std::vector<std::string> gguf_keys() {
  std::vector<std::string> keys = gguf_mamba2_keys();
  keys.emplace_back("attention.head_count_kv");
  return keys;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_bamba_mixer(file, prefix, config);
  const auto heads =
      gguf_of_each_layer(file, prefix + "attention.head_count_kv", config.at("num_hidden_layers").get<int64_t>());
  config["attn_layer_indices"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] > 0) config["attn_layer_indices"].push_back(i);
  }
  nlohmann::ordered_json rope = config.at("rope_scaling");
  if (rope.is_null()) rope["rope_type"] = "default";
  rope["rope_theta"] = config.at("rope_theta");
  rope["partial_rotary_factor"] = config.value("partial_rotary_factor", 1.0);
  config["rope_parameters"] = rope;
  for (const char* moved : {"rope_scaling", "rope_theta", "partial_rotary_factor"}) config.erase(moved);
}

// Granite 4 has the same architecture there.
bool gguf_is_own(const GgufFile& file, const std::string& prefix) { return !file.has(prefix + "embedding_scale"); }

const RegisteredFamily kFamily({.model_type = "bamba",
                                .class_name = "BambaForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = module_names,
                                .module_names = module_names,
                                .gguf_architecture = "granitehybrid",
                                .gguf_rules = gguf_rules,
                                .gguf_rotates_part = true,
                                .gguf_reads = gguf_keys(),
                                .gguf_extend = gguf_extend,
                                .gguf_is_own = gguf_is_own});

}  // namespace hotswap::bamba
