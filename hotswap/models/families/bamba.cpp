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

const RegisteredFamily kFamily({.model_type = "bamba",
                                .class_name = "BambaForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = module_names,
                                .module_names = module_names});

}  // namespace hotswap::bamba
