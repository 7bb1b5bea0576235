// Jamba: Mamba's mixer, with norms of dt, B and C, in most layers, attention without a rotary embedding in the others;
// behind either an MLP or a mixture of experts.
#include "hotswap/base/error.h"
#include "hotswap/layers/mamba_mixer.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/families/mixed_block.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::jamba {
namespace {

// Every `period`-th layer, from `offset` on.
class Every {
 public:
  Every(const Json& json, const std::string& what, int64_t period, int64_t offset)
      : period_(positive(json, what + "_layer_period", period)),
        offset_(json.get<int64_t>(what + "_layer_offset", offset)) {
    if (offset_ >= 0 && offset_ < period_) return;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(what, "_layer_offset from 0 to below ", what, "_layer_period, ", period_),
                 .got = cat(offset_, " in ", json.where()),
                 .next = cat("set ", what, "_layer_offset below ", what, "_layer_period")});
  }
  bool has(int64_t layer) const { return layer % period_ == offset_; }

 private:
  int64_t period_, offset_;
};

void read_mixtures(ModelConfig& c, const Json& json) {
  if (json.get<int64_t>("num_experts", 16) == 1) {
    c.mixture.sparse.assign(c.num_hidden_layers, false);
    return;
  }
  c.mixture = read_mixture_config(c.num_hidden_layers, json, {.hidden = "intermediate_size"});
  const Every experts(json, "expert", 2, 1);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.mixture.sparse[i] = experts.has(i);
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json);
  refuse_if(c.hidden_act != "silu", json, "a hidden_act other than silu");
  c.mlp_bias = false;  // whatever a config says, as transformers has it
  c.rope_parameters = {};
  const Every attention(json, "attn", 8, 4);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (!attention.has(i)) c.layer_types[i] = kRecurrentLayer;
  }
  c.no_rope_layers.assign(c.num_hidden_layers, 0);
  read_mixtures(c, json);
  MambaOptions& m = c.mamba;
  m.hidden_size = c.hidden_size;
  m.state = positive(json, "mamba_d_state", 16);
  m.conv_width = positive(json, "mamba_d_conv", 4);
  m.conv_bias = flag(json, "mamba_conv_bias", true);
  m.bias = json.get<bool>("mamba_proj_bias", false);
  m.norm_eps = c.rms_norm_eps;
  m.weighted_norms = true;
  m.time_step.is_special = false;
  read_mamba_sizes(c, json, "mamba_expand", "mamba_dt_rank");
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  MixedBlockParts parts{.mixer_name = recurs(c, layer) ? "mamba" : "self_attn"};
  if (recurs(c, layer)) {
    parts.mixer = std::make_unique<MambaMixer>(mamba_options(c, layer));
  } else {
    parts.mixer = std::make_unique<SelfAttention>(attention_options(c, layer));
  }
  if (c.mixture.sparse.at(layer)) {
    MixtureOptions mixture = mixture_options(c);
    mixture.router_name = "router";
    parts.feed_forward = std::make_unique<Mixture>(mixture);
  } else {
    parts.feed_forward = std::make_unique<GatedMLP>(mlp_options(c));
  }
  return std::make_unique<MixedBlock>(c, std::move(parts));
}

TensorRules module_names(const ModelConfig&) { return {TensorRule::rename("model.final_layernorm", "model.norm")}; }

TensorRules tensor_rules(const ModelConfig& c) {
  TensorRules rules = expert_rules({.block = "feed_forward", .own_block = "feed_forward"});
  rules.push_back(module_names(c).front());
  return rules;
}

}  // namespace

const RegisteredFamily kJamba({.model_type = "jamba",
                               .class_name = "JambaForCausalLM",
                               .read_config = read_config,
                               .make_block = make_block,
                               .tensor_rules = tensor_rules,
                               .own_parameter_order = true,
                               .module_names = module_names});

}  // namespace hotswap::jamba
