// Mamba: a recurrence in every layer, no attention and no MLP.
#include "hotswap/models/families/mamba.h"

#include <ATen/ops/add.h>

#include "hotswap/layers/mamba_mixer.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/family.h"

namespace hotswap {

MambaBlock::MambaBlock(const ModelConfig& c, std::unique_ptr<TokenMixer> mixer)
    : residual_in_fp32_(c.residual_in_fp32), mixer_(std::move(mixer)), norm_(c.hidden_size, c.norm()) {
  own("norm", norm_);
  own("mixer", *mixer_);
}

HiddenState MambaBlock::forward(const HiddenState& in, const ForwardContext& context) {
  if (residual_in_fp32_ && in.x.scalar_type() != at::kFloat) {
    const Tensor h = in.residual.defined() ? at::add(in.residual, in.x) : in.x.to(at::kFloat);
    return {mixer_->forward(norm_.forward(h.to(norm_.weight.scalar_type())), context), h};
  }
  const auto [y, h] =
      in.residual.defined() ? norm_.forward(in.x, in.residual) : AddRMSNorm::Result{norm_.forward(in.x), in.x};
  return {mixer_->forward(y, context), h};
}

ModelConfig read_mamba_config(const Json& json, bool tie_word_embeddings) {
  ModelConfig c = read_model_config(json, {.tie_word_embeddings = tie_word_embeddings});
  c.rms_norm_eps = positive_number(json, "layer_norm_epsilon", 1e-5);
  c.initializer_range = json.get<double>("initializer_range", 0.1);
  c.residual_in_fp32 = flag(json, "residual_in_fp32", true);
  c.hidden_act = json.get<std::string>("hidden_act", "silu");
  refuse_if(c.hidden_act != "silu", json, "a hidden_act other than silu");
  MambaOptions& m = c.mamba;
  m.hidden_size = c.hidden_size;
  m.conv_width = positive(json, "conv_kernel", 4);
  m.bias = json.get<bool>("use_bias", false);
  m.conv_bias = flag(json, "use_conv_bias", true);
  TimeStepInit& t = m.time_step;
  t.min = positive_number(json, "time_step_min", t.min);
  t.max = positive_number(json, "time_step_max", t.max);
  t.floor = positive_number(json, "time_step_floor", t.floor);
  t.scale = positive_number(json, "time_step_scale", t.scale);
  t.constant = json.get<std::string>("time_step_init_scheme", "random") == "constant";
  t.rescaled_by = json.get<bool>("rescale_prenorm_residual", false) ? c.num_hidden_layers : 1;
  return c;
}

void read_mamba_sizes(ModelConfig& c, const Json& json, const char* width_key, const char* rank_key) {
  c.mamba.channels = positive(json, width_key, 2) * c.hidden_size;
  const bool is_auto = !json.has(rank_key) || json.child(rank_key).is_string();
  c.mamba.rank = is_auto ? (c.hidden_size + 15) / 16 : positive(json, rank_key);
}

MambaOptions mamba_options(const ModelConfig& c, int64_t layer) {
  MambaOptions options = c.mamba;
  options.layer = layer;
  return options;
}

TensorRules backbone_names(const ModelConfig&) {
  return {TensorRule::rename("backbone.embeddings", "model.embed_tokens"),
          TensorRule::rename("backbone.layers", "model.layers"), TensorRule::rename("backbone.norm_f", "model.norm"),
          TensorRule::rename("backbone.embedding", "model.embed_tokens")};  // in older files
}

ModelConfig read_mamba1_config(const Json& json) {
  ModelConfig c = read_mamba_config(json, /*tie_word_embeddings=*/true);
  c.mamba.state = positive(json, "state_size", 16);
  read_mamba_sizes(c, json, "expand", "time_step_rank");
  c.mamba.channels = positive(json, "intermediate_size", c.mamba.channels);  // it wins, as transformers has it
  return c;
}

std::unique_ptr<Block> make_mamba1_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<MambaBlock>(c, std::make_unique<MambaMixer>(mamba_options(c, layer)));
}

const RegisteredFamily kMamba({.model_type = "mamba",
                               .class_name = "MambaForCausalLM",
                               .read_config = read_mamba1_config,
                               .make_block = make_mamba1_block,
                               .tensor_rules = backbone_names,
                               .own_parameter_order = true,
                               .module_names = backbone_names});

}  // namespace hotswap
