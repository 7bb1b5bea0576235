// Llama 4, the text model: most layers see their own chunk of tokens and turn queries and keys, which then are of one
// length; the others see all, turn nothing, and scale queries by their place. In some layers, or all, a mixture whose
// weights multiply what the experts read.
#include "hotswap/base/error.h"
#include "hotswap/models/families/llama.h"
#include "hotswap/models/families/mixture.h"
#include "hotswap/models/family.h"

namespace hotswap::llama4 {
namespace {

// Which layers see their chunk alone: those that turn, unless layer_types says otherwise.
void read_chunks(ModelConfig& c, const Json& json) {
  const int64_t interval = positive(json, "no_rope_layer_interval", 4);
  c.no_rope_layers = json.get<std::vector<int64_t>>("no_rope_layers", {});
  if (c.no_rope_layers.empty()) {
    for (int64_t i = 1; i <= c.num_hidden_layers; ++i) c.no_rope_layers.push_back(i % interval == 0 ? 0 : 1);
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if (c.rotates(i)) c.layer_types[i] = "chunked_attention";
  }
  c.layer_types = json.get<std::vector<std::string>>("layer_types", c.layer_types);
  const auto count = static_cast<int64_t>(c.layer_types.size());
  const auto turning = static_cast<int64_t>(c.no_rope_layers.size());
  if (count != c.num_hidden_layers || turning < c.num_hidden_layers) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(c.num_hidden_layers, " layer_types and no_rope_layers, one a layer"),
                 .got = cat(count, " and ", turning, " in ", json.where()),
                 .next = "list one entry a layer in both"});
  }
  for (const std::string& type : c.layer_types) {
    if (type == "chunked_attention" || type == "full_attention") continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "layer_types of full_attention and chunked_attention",
                 .got = cat('"', type, "\" in ", json.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  c.attention_chunk_size = positive(json, "attention_chunk_size", 8192);
}

void read_mixtures(ModelConfig& c, const Json& json) {
  c.mixture =
      read_mixture_config(c.num_hidden_layers, json,
                          {.hidden = "intermediate_size", .aux_loss_coef = std::nullopt, .num_experts_per_tok = 1});
  c.mixture.shared_expert_intermediate_size = c.mixture.moe_intermediate_size;
  const int64_t step = positive(json, "interleave_moe_layer_step", 1);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.mixture.sparse[i] = (i + 1) % step == 0;
  if (!json.has("moe_layers")) return;
  c.mixture.sparse.assign(c.num_hidden_layers, false);
  for (const int64_t layer : json.at<std::vector<int64_t>>("moe_layers")) {
    if (layer >= 0 && layer < c.num_hidden_layers) c.mixture.sparse[layer] = true;
  }
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_decoder_config(json, {.head_dim = 128, .heads_may_lack = false, .rope = {.theta = 500000}});
  read_chunks(c, json);
  read_mixtures(c, json);
  c.intermediate_size = positive(json, "intermediate_size_mlp", 16384);  // of layers without experts
  c.rotates_in_float32 = true;
  c.use_qk_norm = flag(json, "use_qk_norm", true);
  if (flag(json, "attn_temperature_tuning", true)) {
    c.temperature = {.floor = positive_number(json, "floor_scale", 8192), .scale = json.get<double>("attn_scale", 0.1)};
  }
  return c;
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  SelfAttentionOptions attention = attention_options(c, layer);
  attention.qkv_bias = attention.output_bias = c.attention_bias;
  attention.interleaved_rotary = true;
  if (c.layer_types[layer] == "chunked_attention") attention.chunk = c.attention_chunk_size;
  if (c.use_qk_norm && c.rotates(layer)) attention.l2_norm_eps = c.rms_norm_eps;
  if (!c.rotates(layer)) attention.temperature = c.temperature;
  MixtureOptions mixture = mixture_options(c);
  mixture.router.scoring = Scoring::kSigmoidOfChosen;
  mixture.router_name = "router";
  mixture.layer = "Llama4TextMoe";
  mixture.experts.transposed = mixture.experts.scale_input = true;
  return mixture_block(c, attention, mixture, layer, "feed_forward");
}

// The kernel for its experts is one for the whole mixture there.
TensorRules module_names(const ModelConfig&) {
  const std::string part = "model.layers.*.feed_forward";
  return {TensorRule::rename(part, part + ".experts"), TensorRule::rename(part + ".activation_fn", part + ".act_fn"),
          TensorRule::rename(part + ".shared_expert.activation_fn", part + ".shared_expert.act_fn")};
}

}  // namespace

const RegisteredFamily kLlama4({.model_type = "llama4_text",
                                .class_name = "Llama4ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .own_parameter_order = true,
                                .module_names = module_names});

}  // namespace hotswap::llama4
