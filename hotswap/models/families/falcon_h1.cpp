// Falcon-H1: attention and Mamba-2 side by side in every layer, on one norm; and a multiplier wherever one may be.
#include <ATen/ops/add.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/layers/mamba2_mixer.h"
#include "hotswap/layers/multiplied.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/family.h"

namespace hotswap::falcon_h1 {

struct Options {
  double attention_in = 1, attention_out = 1, recurrence_out = 1, key = 1, gate = 1, down = 1;  // multipliers
};

// `count` of them; absent or null: ones.
std::vector<double> read_multipliers(const Json& json, const char* key, size_t count) {
  if (!json.has(key)) return std::vector<double>(count, 1);
  const auto found = json.at<std::vector<double>>(key);
  const bool finite = std::all_of(found.begin(), found.end(), [](double m) { return std::isfinite(m); });
  if (found.size() == count && finite) return found;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(count, " finite values in ", key),
               .got = cat(join(found), " in ", json.where()),
               .next = cat("write one for each part, or leave ", key, " out: all are 1 then")});
}

void read_mixer(ModelConfig& c, const Json& json) {
  const bool by_width = json.raw().contains("mamba_d_ssm") && !json.has("mamba_d_ssm");  // null
  read_bamba_mixer(c, json, by_width ? bamba_channels(c, json) : positive(json, "mamba_d_ssm", 1024));
  MambaOptions& m = c.mamba;
  m.gated_norm = flag(json, "mamba_rms_norm", false);
  m.norm_before_gate = flag(json, "mamba_norm_before_gate", true);
  m.output_bias = flag(json, "projectors_bias", false);
  m.input_multiplier = positive_number(json, "ssm_in_multiplier", 1);
  const std::vector<double> parts = read_multipliers(json, "ssm_multipliers", m.multipliers.size());
  std::copy(parts.begin(), parts.end(), m.multipliers.begin());
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.heads_may_lack = false, .norm_eps = 1e-5});
  read_mixer(c, json);
  c.embedding_multiplier = positive_number(json, "embedding_multiplier", 1);
  c.logits_multiplier = positive_number(json, "lm_head_multiplier", 1);
  const std::vector<double> mlp = read_multipliers(json, "mlp_multipliers", 2);
  c.family_options = Options{.attention_in = positive_number(json, "attention_in_multiplier", 1),
                             .attention_out = positive_number(json, "attention_out_multiplier", 1),
                             .recurrence_out = positive_number(json, "ssm_out_multiplier", 1),
                             .key = positive_number(json, "key_multiplier", 1),
                             .gate = mlp[0],
                             .down = mlp[1]};
  return c;
}

SelfAttentionOptions attention_of(const ModelConfig& c, int64_t layer, double key_multiplier) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.key_multiplier = key_multiplier;
  return attention;
}

GatedMLPOptions mlp_of(const ModelConfig& c, const Options& o) {
  GatedMLPOptions mlp = mlp_options(c);
  mlp.gate_multiplier = o.gate;
  mlp.down_multiplier = o.down;
  return mlp;
}

//   hidden += recurrence(norm(hidden)) + attention(norm(hidden)); hidden += mlp(norm(hidden))
class FalconH1Block : public Block {
 public:
  FalconH1Block(const ModelConfig& c, int64_t layer, const Options& o)
      : options_(o),
        feed_forward_(mlp_of(c, o)),
        mamba_(mamba_options(c, layer)),
        self_attn_(attention_of(c, layer, o.key)),
        input_layernorm_(c.hidden_size, c.norm()),
        pre_ff_layernorm_(c.hidden_size, c.norm()) {
    own("feed_forward", feed_forward_);
    own("mamba", mamba_);
    own("self_attn", self_attn_);
    own("input_layernorm", input_layernorm_);
    own("pre_ff_layernorm", pre_ff_layernorm_);
  }
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override {
    const auto [y, h] = input_layernorm_.after(in.x, in.residual);
    const Tensor recurred = multiplied(mamba_.forward(y, context), options_.recurrence_out);
    const Tensor attended = self_attn_.forward(multiplied(y, options_.attention_in), context);
    const Tensor mixed = at::add(recurred, multiplied(attended, options_.attention_out));
    const auto [z, residual] = pre_ff_layernorm_.forward(mixed, h);
    return {feed_forward_.forward(z), residual};
  }
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return std::make_unique<KeysAndStatesLayer>(self_attn_.make_cache_layer(reserve));
  }

 private:
  Options options_;
  GatedMLP feed_forward_;
  Mamba2Mixer mamba_;
  SelfAttention self_attn_;
  AddRMSNorm input_layernorm_, pre_ff_layernorm_;
};

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<FalconH1Block>(c, layer, std::any_cast<Options>(c.family_options));
}

TensorRules module_names(const ModelConfig&) { return {TensorRule::rename("model.final_layernorm", "model.norm")}; }

TensorRules gguf_rules(const ModelConfig&) {
  const std::string layer = "model.layers.*.";
  TensorRules rules = gguf_mamba2_rules(layer + "mamba.");
  rules.push_back(TensorRule::rename("blk.*.ffn_norm.weight", layer + "pre_ff_layernorm.weight"));
  rules.push_back(TensorRule::rename("blk.*.ffn_norm", layer + "pre_ff_layernorm.weight"));  // as it is written
  for (const char* part : {"gate", "up", "down"}) {
    rules.push_back(TensorRule::rename(cat("blk.*.ffn_", part), cat(layer, "feed_forward.", part, "_proj")));
  }
  return with_gguf_decoder_rules(std::move(rules));
}

// The multipliers are in the weights there.
void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  gguf_extend_bamba_mixer(file, prefix, config);
  config["mamba_d_ssm"] = file.at<int64_t>(prefix + "ssm.inner_size");
  config.erase("mamba_expand");
  config["mamba_rms_norm"] = gguf_has_in_a_layer(file, "ssm_norm.weight");
  config["mamba_norm_before_gate"] = false;
  config["projectors_bias"] = gguf_has_in_a_layer(file, "ssm_out.bias");
  for (const char* one : {"attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier",
                          "key_multiplier", "lm_head_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"}) {
    config[one] = 1.0;
  }
  config["mlp_multipliers"] = {1.0, 1.0};
  config["ssm_multipliers"] = {1.0, 1.0, 1.0, 1.0, 1.0};
}

const RegisteredFamily kFamily({.model_type = "falcon_h1",
                                .class_name = "FalconH1ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = module_names,
                                .module_names = module_names,
                                .gguf_architecture = "falcon-h1",
                                .gguf_rules = gguf_rules,
                                .gguf_reads = gguf_mamba2_keys(),
                                .gguf_extend = gguf_extend});

}  // namespace hotswap::falcon_h1
