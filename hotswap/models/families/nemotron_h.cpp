// Nemotron-H: a layer is one part only: Mamba-2, attention without a rotary embedding, an MLP without a gate, or a
// mixture of such experts, which may compute in a latent space.
#include <ATen/ops/add.h>

#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/layers/plain_mlp.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/config_names.h"
#include "hotswap/models/families/deepseek_mixture.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/families/mamba2.h"
#include "hotswap/models/family.h"

namespace hotswap::nemotron_h {

constexpr const char* kTypes = "layers_block_type";

struct Options {
  int64_t latent = 0;  // width that experts compute in; 0: hidden_size
};

// The letters of older files, of which the newer ones' types are made.
std::vector<std::string> types_of_pattern(const Json& json) {
  std::vector<std::string> types;
  for (const char letter : json.at<std::string>("hybrid_override_pattern")) {
    if (letter == 'M') types.emplace_back(kRecurrentLayer);
    if (letter == '*') types.emplace_back("full_attention");
    if (letter == '-') types.emplace_back("mlp");
    if (letter == 'E') types.emplace_back("moe");
    if (std::string_view("M*-E").find(letter) != std::string_view::npos) continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a hybrid_override_pattern of M (Mamba-2), * (attention), - (MLP) and E (experts)",
                 .got = cat("'", letter, "' in ", json.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  return types;
}

std::vector<std::string> types_of(const Json& json) {
  const std::vector<std::string> known = {kRecurrentLayer, "full_attention", "mlp", "moe"};
  for (const char* key : {kTypes, "layer_types"}) {
    if (json.has(key)) return read_mixed_layers(json, key, known);
  }
  if (json.has("hybrid_override_pattern")) return types_of_pattern(json);
  return {kRecurrentLayer, "moe", "full_attention", "mlp"};
}

void read_mixer(ModelConfig& c, const Json& json) {
  refuse_if(json.get<std::string>("mamba_hidden_act", "silu") != "silu", json, "a mamba_hidden_act other than silu");
  MambaOptions& m = c.mamba;
  m.hidden_size = c.hidden_size;
  m.state = positive(json, "ssm_state_size", 128);
  m.heads = positive(json, "mamba_num_heads", 128);
  m.head_dim = positive(json, "mamba_head_dim", 64);
  m.groups = positive(json, "n_groups", 8);
  m.chunk_size = positive(json, "chunk_size", 128);
  m.channels = m.heads * m.head_dim;
  m.conv_width = positive(json, "conv_kernel", 4);
  m.conv_bias = flag(json, "use_conv_bias", true);
  m.bias = flag(json, "use_bias", false);
  m.gated_norm_eps = c.rms_norm_eps;
  check_heads(m, json, {"mamba_num_heads", "mamba_head_dim"});
  TimeStepInit& t = m.time_step;
  t.min = positive_number(json, "time_step_min", t.min);
  t.max = positive_number(json, "time_step_max", t.max);
  t.floor = positive_number(json, "time_step_floor", t.floor);
  t.is_special = false;
  t.special_output = flag(json, "rescale_prenorm_residual", true);
  t.rescaled_by = c.num_hidden_layers;
  m.dt_min = t.min;  // time_step_limit is ignored, as transformers has it
  m.dt_max = std::numeric_limits<double>::infinity();
}

void read_mixtures(ModelConfig& c, const Json& json, const std::vector<std::string>& types) {
  if (std::find(types.begin(), types.end(), "moe") != types.end()) {
    read_deepseek_mixtures(c, json, {.first_dense = 0, .groups = 1, .top_groups = 1, .scale = 1});
    c.mixture.shared_expert_intermediate_size = positive(json, "moe_shared_expert_intermediate_size");
  }
  c.mixture.sparse.clear();
  for (const std::string& type : types) c.mixture.sparse.push_back(type == "moe");
  c.family_options = Options{.latent = json.has("moe_latent_size") ? positive(json, "moe_latent_size") : 0};
}

ModelConfig read_typed(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim = 128,
                                             .heads_may_lack = false,
                                             .activation_key = "mlp_hidden_act",
                                             .activation = "relu2",
                                             .norm_eps_key = "layer_norm_epsilon",
                                             .norm_eps = 1e-5,
                                             .rotary = false});
  refuse_if(json.has("sliding_window"), json, "a sliding_window");
  c.tie_word_embeddings = c.attention_bias = false;  // transformers ignores both keys
  c.norm_casting = "gemma";  // one rounding, as its publisher has it, and transformers from 5.24 on
  c.no_rope_layers.assign(c.num_hidden_layers, 0);
  c.layer_types = types_of(json);
  read_mixer(c, json);
  read_mixtures(c, json, c.layer_types);
  return c;
}

// There are as many layers as types; transformers ignores num_hidden_layers.
ModelConfig read_named(const Json& json) {
  nlohmann::ordered_json counted = json.raw();
  const size_t layers = types_of(json).size();
  if (layers == 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a layer at least in ", kTypes),
                 .got = cat("none in ", json.where()),
                 .next = "list a type for each layer"});
  }
  counted["num_hidden_layers"] = layers;
  return read_typed(Json::parse(counted.dump(), json.where()));
}

ModelConfig read_config(const Json& json) {
  return read_by_names(json,
                       {{"mamba_n_groups", "n_groups"},
                        {"mamba_d_conv", "conv_kernel"},
                        {"mamba_dt_min", "time_step_min"},
                        {"mamba_dt_max", "time_step_max"},
                        {"mamba_dt_init_floor", "time_step_floor"},
                        {"mamba_conv_bias", "use_conv_bias"},
                        {"mamba_chunk_size", "chunk_size"}},
                       read_named);
}

// The activation of experts without a gate.
std::string expert_activation(const std::string& hidden_act) {
  if (hidden_act == "swish") return "silu";
  if (hidden_act == "gelu_pytorch_tanh") return "gelu_tanh";
  for (const char* same : {"relu2", "silu", "gelu"}) {
    if (hidden_act == same) return hidden_act;
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "an mlp_hidden_act that experts have: relu2, silu, swish, gelu_pytorch_tanh, gelu",
               .got = cat('"', hidden_act, '"'),
               .next = "add it to hotswap/layers/experts.cpp and to the contract moe/1"});
}

GatedMLPOptions shared_options(const ModelConfig& c) {
  GatedMLPOptions options = mlp_options(c);
  options.hidden = c.mixture.shared_expert_intermediate_size;
  return options;
}

//   up(experts(down(x))) + shared(x); the router reads x
class NemotronMixture : public FeedForward {
 public:
  NemotronMixture(const ModelConfig& c, int64_t latent)
      : router_(deepseek_v3_router(c)),
        experts_({.experts = c.mixture.num_experts,
                  .dim = latent > 0 ? latent : c.hidden_size,
                  .hidden = c.mixture.moe_intermediate_size},
                 {.activation = expert_activation(c.hidden_act)}),
        shared_(shared_options(c)) {
    own("experts", experts_);
    own("gate", router_);
    own("shared_experts", shared_);
    if (latent == 0) return;
    to_latent_ = std::make_unique<Linear>(c.hidden_size, latent, c.mlp_bias);
    from_latent_ = std::make_unique<Linear>(latent, c.hidden_size, c.mlp_bias);
    own("fc1_latent_proj", *to_latent_);
    own("fc2_latent_proj", *from_latent_);
  }
  Tensor forward(const Tensor& x, const ForwardContext& context) const override {
    const Tensor tokens = x.reshape({-1, x.size(-1)});
    const Router::Result routed = router_.route(tokens);
    if (context.router_logits != nullptr) context.router_logits->push_back(routed.logits);
    Tensor y = experts_.forward(to_latent_ ? to_latent_->forward(tokens) : tokens, routed.routing);
    if (from_latent_) y = from_latent_->forward(y);
    return at::add(y.view(x.sizes()), shared_.forward(x));
  }

 private:
  Router router_;
  Experts experts_;
  PlainMLP shared_;
  std::unique_ptr<Linear> to_latent_, from_latent_;
};

//   hidden += mixer(norm(hidden)), across tokens or of each by itself
class NemotronBlock : public Block {
 public:
  NemotronBlock(const ModelConfig& c, std::unique_ptr<TokenMixer> across, std::unique_ptr<FeedForward> each)
      : across_(std::move(across)), each_(std::move(each)), norm_(c.hidden_size, c.norm()) {
    own("norm", norm_);
    if (across_) own("mixer", *across_);
    if (each_) own("mixer", *each_);
  }
  HiddenState forward(const HiddenState& in, const ForwardContext& context) override {
    const auto [y, h] = norm_.after(in.x, in.residual);
    return {across_ ? across_->forward(y, context) : each_->forward(y, context), h};
  }
  std::unique_ptr<CacheLayer> make_cache_layer(int64_t reserve) const override {
    return across_ ? across_->make_cache_layer(reserve) : std::make_unique<EmptyLayer>();
  }

 private:
  std::unique_ptr<TokenMixer> across_;  // or
  std::unique_ptr<FeedForward> each_;
  AddRMSNorm norm_;
};

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  const std::string& type = c.layer_types.at(layer);
  if (type == "mlp") return std::make_unique<NemotronBlock>(c, nullptr, std::make_unique<PlainMLP>(mlp_options(c)));
  if (type != "moe") return std::make_unique<NemotronBlock>(c, make_mixed_mixer(c, layer), nullptr);
  const int64_t latent = std::any_cast<Options>(c.family_options).latent;
  return std::make_unique<NemotronBlock>(c, nullptr, std::make_unique<NemotronMixture>(c, latent));
}

TensorRules module_names(const ModelConfig&) {
  return {TensorRule::rename("model.embeddings", "model.embed_tokens"),
          TensorRule::rename("model.norm_f", "model.norm")};
}

TensorRules tensor_rules(const ModelConfig& c) {
  const std::string one = "backbone.layers.*.mixer.experts.*.", all = "model.layers.*.mixer.experts.";
  TensorRules rules = {TensorRule::stack({one + "up_proj.weight"}, all + "up_proj"),
                       TensorRule::stack({one + "down_proj.weight"}, all + "down_proj"),
                       TensorRule::leave_out("mtp")};  // layers that predict further tokens
  for (const TensorRules& names : {backbone_names(c), module_names(c)}) {
    rules.insert(rules.end(), names.begin(), names.end());
  }
  return rules;
}

TensorRules gguf_rules(const ModelConfig& c) {
  const std::string layer = "model.layers.*.";
  TensorRules rules = gguf_mamba2_rules(layer + "mixer.");
  rules.insert(rules.begin(), TensorRule::leave_out(cat("blk.", c.num_hidden_layers)));
  for (const auto& [theirs, ours] :
       {std::pair("attn_norm", "norm"), std::pair("attn_v", "mixer.v_proj"), std::pair("attn_output", "mixer.o_proj"),
        std::pair("ffn_up", "mixer.up_proj"), std::pair("ffn_down", "mixer.down_proj"),
        std::pair("ffn_gate_inp", "mixer.gate"), std::pair("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        std::pair("ffn_up_exps.weight", "mixer.experts.up_proj"),
        std::pair("ffn_down_exps.weight", "mixer.experts.down_proj"),
        std::pair("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        std::pair("ffn_down_shexp", "mixer.shared_experts.down_proj"),
        std::pair("ffn_latent_down", "mixer.fc1_latent_proj"), std::pair("ffn_latent_up", "mixer.fc2_latent_proj")}) {
    rules.push_back(TensorRule::rename(cat("blk.*.", theirs), layer + ours));
  }
  // Nothing turns, but llama.cpp's converter is Granite's.
  for (const auto& [part, heads] : {std::pair("q", c.num_attention_heads), std::pair("k", c.num_key_value_heads)}) {
    rules.push_back(
        TensorRule::move_rows(cat("blk.*.attn_", part), cat(layer, "mixer.", part, "_proj"),
                              [heads = heads](const at::Tensor& rows) { return half_split_rows(rows, heads); }));
  }
  return with_gguf_decoder_rules(std::move(rules));
}

std::vector<std::string> gguf_keys() {
  std::vector<std::string> keys = gguf_mamba2_keys();
  keys.insert(keys.end(), gguf_deepseek_mixture_keys().begin(), gguf_deepseek_mixture_keys().end());
  for (const char* key : {"attention.head_count_kv", "feed_forward_length", "expert_shared_feed_forward_length",
                          "moe_latent_size", "rope.dimension_count"}) {
    keys.emplace_back(key);
  }
  return keys;
}

void gguf_extend(const GgufFile& file, const std::string& prefix, nlohmann::ordered_json& config) {
  const bool mixes = file.get<int64_t>(prefix + "expert_count", 0) > 0;
  const auto layers = config.at("num_hidden_layers").get<int64_t>();
  const auto heads = gguf_of_each_layer(file, prefix + "attention.head_count_kv", layers);
  const auto widths = gguf_of_each_layer(file, prefix + "feed_forward_length", layers);
  const auto beyond = file.get<int64_t>(prefix + "nextn_predict_layers", 0);  // predict further tokens
  for (int64_t i = 0; i < std::min(layers, layers - beyond); ++i) {
    const char* mixer = heads[i] > 0 ? "attention" : "mamba";
    config[kTypes].push_back(widths[i] == 0 ? mixer : mixes ? "moe" : "mlp");
  }
  config.erase("num_hidden_layers");   // as many as types
  config["mlp_hidden_act"] = "relu2";  // implied there
  const auto number = [&](const char* key) { return file.at<int64_t>(prefix + "ssm." + key); };
  config["ssm_state_size"] = number("state_size");
  config["mamba_num_heads"] = number("time_step_rank");
  config["mamba_head_dim"] = number("inner_size") / std::max<int64_t>(number("time_step_rank"), 1);
  config["n_groups"] = number("group_count");
  config["conv_kernel"] = number("conv_kernel");
  config["use_conv_bias"] = gguf_has_in_a_layer(file, "ssm_conv1d.bias");
  config["use_bias"] = gguf_has_in_a_layer(file, "ssm_in.bias");
  config["mlp_bias"] = gguf_has_in_a_layer(file, "ffn_up.bias");
  if (!mixes) return;
  config["num_hidden_layers"] = layers;
  gguf_extend_deepseek_mixtures(file, prefix, config);
  config.erase("num_hidden_layers");
  config["moe_shared_expert_intermediate_size"] = file.at<int64_t>(prefix + "expert_shared_feed_forward_length");
  if (file.has(prefix + "moe_latent_size")) config["moe_latent_size"] = file.at<int64_t>(prefix + "moe_latent_size");
}

bool gguf_is_own(const GgufFile&, const std::string&) { return true; }

const RegisteredFamily kFamily({.model_type = "nemotron_h",
                                .class_name = "NemotronHForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = tensor_rules,
                                .module_names = module_names,
                                .gguf_architecture = "nemotron_h",
                                .gguf_architecture_of_experts = "nemotron_h_moe",
                                .gguf_rules = gguf_rules,
                                .gguf_norm_eps = "layer_norm_epsilon",
                                .gguf_reads = gguf_keys(),
                                .gguf_extend = gguf_extend,
                                .gguf_is_own = gguf_is_own});

}  // namespace hotswap::nemotron_h
