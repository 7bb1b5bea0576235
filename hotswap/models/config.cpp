#include "hotswap/models/config.h"

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/layers/activation.h"

namespace hotswap {
namespace {

constexpr int64_t kLargest = int64_t{1} << 31;  // of any one size: keeps products of two within int64

int64_t positive(const Json& config, std::string_view key, std::optional<int64_t> otherwise = {}) {
  const int64_t value = otherwise ? config.get<int64_t>(key, *otherwise) : config.at<int64_t>(key);
  if (value > 0 && value < kLargest) return value;
  throw Error({.wanted = cat("a size between 1 and 2^31 for ", key),
               .got = cat(value, " in ", config.where()),
               .next = "check config.json"});
}

double positive_number(const Json& json, std::string_view key, std::optional<double> otherwise = {}) {
  const double value = otherwise ? json.get<double>(key, *otherwise) : json.at<double>(key);
  if (value > 0 && std::isfinite(value)) return value;
  throw Error({.wanted = cat("a positive number for ", key),
               .got = cat(value, " in ", json.where()),
               .next = "check config.json"});
}

// Keys that change what the model computes and that no family here implements.
void refuse_unimplemented(const Json& config) {
  std::vector<std::string> found;
  if (config.has("quantization_config")) found.emplace_back("quantization_config");
  if (config.get<bool>("use_sliding_window", false)) found.emplace_back("use_sliding_window = true");
  if (config.has("layer_types")) {
    for (const auto& type : config.at<std::vector<std::string>>("layer_types")) {
      if (type != "full_attention") {
        found.push_back(cat("layer_types with \"", type, '"'));
        break;
      }
    }
  }
  if (found.empty()) return;
  throw Error({.wanted = "a model with full attention and plain weights",
               .got = cat(join(found), " in ", config.where()),
               .next = "take another checkpoint: this is not implemented"});
}

// Where the rotary parameters stand: "rope_parameters" since transformers 5, "rope_scaling" before, or nowhere.
std::optional<Json> find_rope(const Json& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto found = config.find(key);
    if (!found) continue;
    if (!found->is_object()) {
      throw Error(
          {.wanted = cat("an object at ", found->where()), .got = "something else", .next = "check config.json"});
    }
    if (!found->items().empty()) return found;
  }
  return std::nullopt;
}

void read_scaling(RopeParameters& rope, const Json& config, const Json& given) {
  const bool has_type = given.has("rope_type");
  rope.type = given.get<std::string>(has_type ? "rope_type" : "type", "default");
  if (std::find(rope_types().begin(), rope_types().end(), rope.type) == rope_types().end()) {
    throw Error({.wanted = cat("a rope type that is implemented: ", join(rope_types())),
                 .got = cat('"', rope.type, "\" in ", given.where()),
                 .next = "add it to hotswap/layers/rope.cpp"});
  }
  if (given.get<double>("partial_rotary_factor", 1.0) != 1.0) {
    throw Error({.wanted = "rotary embeddings on the whole head",
                 .got = cat("partial_rotary_factor in ", given.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  if (rope.type == "default") return;
  const int64_t outer = config.get<int64_t>("original_max_position_embeddings", 0);
  rope.original_max_position_embeddings =
      outer != 0 ? outer : positive(given, "original_max_position_embeddings", rope.max_position_embeddings);
  const double ratio =
      static_cast<double>(rope.max_position_embeddings) / static_cast<double>(rope.original_max_position_embeddings);
  const bool may_lack_factor = rope.type == "longrope" || (rope.type == "yarn" && given.raw().contains("factor"));
  rope.factor = may_lack_factor ? positive_number(given, "factor", ratio) : positive_number(given, "factor");
  if (rope.type == "llama3") {
    rope.low_freq_factor = positive_number(given, "low_freq_factor");
    rope.high_freq_factor = positive_number(given, "high_freq_factor");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      throw Error({.wanted = "high_freq_factor above low_freq_factor",
                   .got = cat(rope.high_freq_factor, " and ", rope.low_freq_factor, " in ", given.where()),
                   .next = "check config.json"});
    }
  }
  if (given.has("attention_factor")) rope.attention_factor = positive_number(given, "attention_factor");
  rope.beta_fast = positive_number(given, "beta_fast", 32);
  rope.beta_slow = positive_number(given, "beta_slow", 1);
  rope.mscale = given.get<double>("mscale", 0);
  rope.mscale_all_dim = given.get<double>("mscale_all_dim", 0);
  rope.truncate = given.get<bool>("truncate", true);
  if (rope.type == "longrope") {
    rope.short_factor = given.at<std::vector<double>>("short_factor");
    rope.long_factor = given.at<std::vector<double>>("long_factor");
    const auto half = static_cast<size_t>(rope.dim / 2);
    if (rope.short_factor.size() != half || rope.long_factor.size() != half) {
      throw Error({.wanted = cat(half, " values in short_factor and in long_factor"),
                   .got = cat(rope.short_factor.size(), " and ", rope.long_factor.size(), " in ", given.where()),
                   .next = "check config.json"});
    }
  }
}

RopeParameters read_rope(const Json& config, int64_t head_dim) {
  RopeParameters rope{.dim = head_dim};
  rope.max_position_embeddings = positive(config, "max_position_embeddings");
  const auto given = find_rope(config);
  const double outer_theta = positive_number(config, "rope_theta", 10000.0);
  rope.theta = given ? positive_number(*given, "rope_theta", outer_theta) : outer_theta;
  if (config.get<double>("partial_rotary_factor", 1.0) != 1.0) {
    throw Error({.wanted = "rotary embeddings on the whole head",
                 .got = cat("partial_rotary_factor in ", config.where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  if (given) read_scaling(rope, config, *given);
  return rope;
}

int64_t read_head_dim(const Json& config, const DecoderConfig& c, const DecoderDefaults& defaults) {
  int64_t head_dim = 0;
  if (config.has("head_dim")) {
    head_dim = positive(config, "head_dim");
  } else if (defaults.head_dim) {
    head_dim = *defaults.head_dim;
  } else if (c.dim % c.heads == 0) {
    head_dim = c.dim / c.heads;
  } else {
    throw Error({.wanted = "a hidden_size that num_attention_heads divides, or head_dim",
                 .got = cat(c.dim, " and ", c.heads, " in ", config.where()),
                 .next = "check config.json"});
  }
  if (head_dim % 2 == 0) return head_dim;
  throw Error({.wanted = "an even head_dim: rotary embeddings turn pairs",
               .got = cat(head_dim, " in ", config.where()),
               .next = "check config.json"});
}

}  // namespace

DecoderConfig read_decoder_config(const Json& config, const DecoderDefaults& defaults) {
  refuse_unimplemented(config);
  DecoderConfig c;
  c.model_type = config.at<std::string>("model_type");
  c.vocab = positive(config, "vocab_size");
  c.dim = positive(config, "hidden_size");
  c.layers = positive(config, "num_hidden_layers");
  c.heads = positive(config, "num_attention_heads");
  c.kv_heads = positive(config, "num_key_value_heads", c.heads);
  c.ffn = positive(config, "intermediate_size");
  c.head_dim = read_head_dim(config, c, defaults);
  if (c.heads % c.kv_heads != 0) {
    throw Error({.wanted = "num_attention_heads that is a multiple of num_key_value_heads",
                 .got = cat(c.heads, " and ", c.kv_heads, " in ", config.where()),
                 .next = "check config.json"});
  }
  c.norm_eps = positive_number(config, "rms_norm_eps");
  c.activation = config.get<std::string>("hidden_act", "silu");
  activation_kind(c.activation, cat(config.where(), ": hidden_act"));  // known, or an Error
  c.rope = read_rope(config, c.head_dim);
  c.tied = config.get<bool>("tie_word_embeddings", false);
  c.attention_bias = config.get<bool>("attention_bias", false);
  c.mlp_bias = config.get<bool>("mlp_bias", false);
  c.attention_dropout = config.get<double>("attention_dropout", 0.0);
  if (!(c.attention_dropout >= 0 && c.attention_dropout < 1)) {
    throw Error({.wanted = "an attention_dropout in [0, 1)",
                 .got = cat(c.attention_dropout, " in ", config.where()),
                 .next = "check config.json"});
  }
  c.initializer_range = config.get<double>("initializer_range", 0.02);
  if (config.has("bos_token_id")) c.bos = config.at<int64_t>("bos_token_id");
  if (config.has("pad_token_id")) c.pad = config.at<int64_t>("pad_token_id");
  c.eos = read_ids(config, "eos_token_id");
  return c;
}

at::ScalarType dtype_from(const std::string& name, const std::string& where) {
  const std::string plain = name.rfind("torch.", 0) == 0 ? name.substr(6) : name;
  if (plain == "float32") return at::kFloat;
  if (plain == "bfloat16") return at::kBFloat16;
  if (plain == "float16") return at::kHalf;
  throw Error({.wanted = "a dtype: float32, bfloat16 or float16",
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
