#include "hotswap/models/config.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/layers/activation.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/formats/quantised.h"

namespace hotswap {
namespace {

constexpr int64_t kMaxLayers = 10000;  // a layer takes memory before any weight is read

int64_t read_head_dim(const Json& config, const ModelConfig& c, const ConfigDefaults& defaults) {
  int64_t head_dim = 0;
  if (config.has(defaults.head_dim_key)) {
    head_dim = positive(config, defaults.head_dim_key);
  } else if (defaults.head_dim) {
    head_dim = *defaults.head_dim;
  } else if (c.hidden_size % c.num_attention_heads == 0) {
    head_dim = c.hidden_size / c.num_attention_heads;
  } else {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = "a hidden_size that num_attention_heads divides, or head_dim",
                 .got = cat(c.hidden_size, " and ", c.num_attention_heads, " in ", config.where()),
                 .next = "add head_dim, as the model's publisher has it"});
  }
  if (head_dim % 2 == 0 || !defaults.rotary) return head_dim;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("an even ", defaults.head_dim_key, ": rotary embeddings turn pairs"),
               .got = cat(head_dim, " in ", config.where()),
               .next = cat("set ", defaults.head_dim_key,
                           " to the number of rows of q_proj.weight divided by num_attention_heads")});
}

}  // namespace

ModelConfig read_model_config(const Json& config, const ConfigDefaults& defaults) {
  check_quantisation(config, defaults.reads_mxfp4);
  ModelConfig c;
  c.model_type = config.at<std::string>("model_type");
  c.vocab_size = positive(config, "vocab_size");
  c.hidden_size = positive(config, "hidden_size");
  c.num_hidden_layers = positive(config, "num_hidden_layers");
  if (c.num_hidden_layers > kMaxLayers) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("at most ", kMaxLayers, " for num_hidden_layers"),
                 .got = cat(c.num_hidden_layers, " in ", config.where()),
                 .next = "set num_hidden_layers to the number of layers in the weights"});
  }
  c.tie_word_embeddings = config.get<bool>("tie_word_embeddings", defaults.tie_word_embeddings);
  c.initializer_range = config.get<double>("initializer_range", 0.02);
  if (config.has("bos_token_id")) c.bos_token_id = config.at<int64_t>("bos_token_id");
  if (config.has("pad_token_id")) c.pad_token_id = config.at<int64_t>("pad_token_id");
  c.eos_token_id = read_ids(config, "eos_token_id");
  return c;
}

ModelConfig read_decoder_config(const Json& config, const ConfigDefaults& defaults) {
  ModelConfig c = read_model_config(config, defaults);
  c.num_attention_heads = positive(config, "num_attention_heads");
  if (!defaults.grouped_heads) {
    c.num_key_value_heads = c.num_attention_heads;
  } else {
    c.num_key_value_heads = defaults.heads_may_lack ? positive(config, defaults.key_heads_key, c.num_attention_heads)
                                                    : positive(config, defaults.key_heads_key);
  }
  const auto times = defaults.intermediate_times;
  c.intermediate_size =
      positive(config, defaults.intermediate_size_key, times > 0 ? std::optional(times * c.hidden_size) : std::nullopt);
  c.head_dim = read_head_dim(config, c, defaults);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("num_attention_heads that is a multiple of ", defaults.key_heads_key),
                 .got = cat(c.num_attention_heads, " and ", c.num_key_value_heads, " in ", config.where()),
                 .next = "set both as the rows of the q_proj and k_proj weights have them"});
  }
  c.rms_norm_eps = positive_number(config, defaults.norm_eps_key, defaults.norm_eps);
  c.hidden_act = config.get<std::string>(defaults.activation_key, defaults.activation);
  activation_kind(c.hidden_act, cat(config.where(), ": ", defaults.activation_key));  // known, or an Error
  refuse_if(!config.get<bool>("is_causal", true), config, "is_causal = false");       // tokens would see later ones
  if (defaults.rotary) {
    ConfiguredRopes ropes = read_ropes(config, c.head_dim, defaults.rope);
    c.rope_parameters = std::move(ropes.all);
    c.sliding_rope_parameters = std::move(ropes.sliding);
  } else {
    c.rope_parameters.max_position_embeddings = positive(config, "max_position_embeddings");
  }
  c.attention_bias = config.get<bool>("attention_bias", false);
  c.mlp_bias = config.get<bool>("mlp_bias", false);
  c.attention_dropout = read_dropout(config, "attention_dropout");
  c.layer_types.assign(c.num_hidden_layers, "full_attention");
  return c;
}

double read_dropout(const Json& config, const char* key, double otherwise) {
  const double p = config.get<double>(key, otherwise);
  if (p >= 0 && p < 1) return p;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("an ", key, " in [0, 1)"),
               .got = cat(p, " in ", config.where()),
               .next = cat("set ", key, " to 0, as it is in inference")});
}

std::vector<std::string> read_layer_types(const ModelConfig& c, const Json& config) {
  const auto types = config.at<std::vector<std::string>>("layer_types");
  if (static_cast<int64_t>(types.size()) != c.num_hidden_layers) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(c.num_hidden_layers, " layer_types, one a layer"),
                 .got = cat(types.size(), " in ", config.where()),
                 .next = "list one type a layer, or leave layer_types out where the family has a pattern"});
  }
  for (const std::string& type : types) {
    if (type == "full_attention" || (type == "sliding_attention" && c.sliding_window > 0)) continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = c.sliding_window > 0 ? "layer_types of full_attention and sliding_attention"
                                                : "layer_types of full_attention: no sliding_window is in use",
                 .got = cat('"', type, "\" in ", config.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  return types;
}

int64_t read_sliding_window(const Json& config, int64_t otherwise) {
  if (config.raw().contains("sliding_window") && !config.has("sliding_window")) return 0;  // null
  return positive(config, "sliding_window", otherwise);
}

void read_sliding_pattern(ModelConfig& c, const Json& config, int64_t pattern) {
  c.sliding_window = read_sliding_window(config, 4096);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    if ((i + 1) % pattern != 0) c.layer_types[i] = "sliding_attention";
  }
  if (config.has("layer_types")) c.layer_types = read_layer_types(c, config);
  const bool slides = std::find(c.layer_types.begin(), c.layer_types.end(), "sliding_attention") != c.layer_types.end();
  if (!slides || c.sliding_window > 0) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "a sliding_window for the layers that slide",
               .got = cat("null in ", config.where()),
               .next = "give it, or layer_types of full_attention"});
}

void read_sliding_layers(ModelConfig& c, const Json& config) {
  if (config.get<bool>("use_sliding_window", false)) c.sliding_window = read_sliding_window(config, 4096);
  if (config.has("layer_types")) {
    c.layer_types = read_layer_types(c, config);
  } else if (c.sliding_window > 0) {
    const auto first = std::max<int64_t>(0, config.get<int64_t>("max_window_layers", 28));  // below, all is seen
    for (int64_t i = first; i < c.num_hidden_layers; ++i) c.layer_types[i] = "sliding_attention";
  }
}

void check_layer_types(const ModelConfig& c, const Json& json) {
  if (json.get<bool>("use_sliding_window", false) && c.sliding_window == 0) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a model of type ", c.model_type, ", in which no layer slides"),
                 .got = cat("use_sliding_window = true in ", json.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  if (!json.has("layer_types") || read_layer_types(c, json) == c.layer_types) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("layers of one type in a model of type ", c.model_type, ": ", c.layer_types.front()),
               .got = cat("other layer_types in ", json.where()),
               .next = "take another checkpoint: this is not implemented"});
}

at::ScalarType dtype_from(const std::string& name, const std::string& where) {
  const std::string plain = name.rfind("torch.", 0) == 0 ? name.substr(6) : name;
  if (plain == "float32") return at::kFloat;
  if (plain == "bfloat16") return at::kBFloat16;
  if (plain == "float16") return at::kHalf;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "a dtype: float32, bfloat16 or float16",
               .got = cat('"', name, "\" as ", where),
               .next = "choose one of them"});
}

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::kFloat) return "float32";
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kHalf) return "float16";
  return c10::toString(dtype);
}

std::optional<at::ScalarType> config_dtype(const Json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.has(key)) return dtype_from(config.at<std::string>(key), cat(config.where(), ": ", key));
  }
  return std::nullopt;
}

std::vector<int64_t> read_ids(const Json& json, std::string_view key) {
  const auto found = json.find(key);
  if (!found) return {};
  if (found->is_array()) return found->as<std::vector<int64_t>>();
  return {found->as<int64_t>()};
}

}  // namespace hotswap
