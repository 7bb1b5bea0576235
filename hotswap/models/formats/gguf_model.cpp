#include "hotswap/models/formats/gguf_model.h"

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

[[noreturn]] void unsupported(const GgufFile& file, std::string wanted, std::string got) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = std::move(wanted),
               .got = cat(got, " in ", file.path().string()),
               .next = "take the model's safetensors checkpoint with its config.json"});
}

// JSON has no NaN: it would be null there, and null is as good as absent.
double finite(const GgufFile& file, const std::string& key, double value) {
  if (!std::isfinite(value)) unsupported(file, cat("a finite ", key), cat(value));
  return value;
}

// Llama 3's scaled rotary frequencies stand in a GGUF as a tensor of divisors, its parameters are not kept. The
// divisors are made from a factor and three constants that all Llama 3 models share: found again, and verified.
nlohmann::ordered_json llama3_scaling(const GgufFile& file, double theta, int64_t head_dim) {
  constexpr double kLow = 1.0, kHigh = 4.0, kOldContext = 8192.0;
  const at::Tensor divisors = file.tensor("rope_freqs.weight");  // [head_dim / 2]
  const float* given = divisors.const_data_ptr<float>();
  if (divisors.dim() != 1 || divisors.size(0) != head_dim / 2) {
    unsupported(file, cat(head_dim / 2, " divisors in rope_freqs.weight"), cat(divisors.numel(), " of them"));
  }
  double factor = 1.0;
  for (int64_t i = 0; i < head_dim / 2; ++i) factor = std::max(factor, static_cast<double>(given[i]));
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double wavelength = 2 * M_PI * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double smooth = (kOldContext / wavelength - kLow) / (kHigh - kLow);
    double expected = 1.0 / ((1 - smooth) / factor + smooth);
    if (wavelength < kOldContext / kHigh) expected = 1.0;
    if (wavelength > kOldContext / kLow) expected = factor;
    if (!(std::abs(given[i] - expected) <= 1e-4 * expected)) {
      unsupported(file, "rope_freqs.weight as Llama 3 has it (low 1, high 4, 8192 positions before)",
                  cat("divisor ", i, " is ", given[i], ", not ", expected));
    }
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<int64_t>(kOldContext)}};
}

nlohmann::ordered_json rope_scaling(const GgufFile& file, const std::string& prefix, double theta, int64_t head_dim) {
  const std::string scaling = prefix + "rope.scaling.";
  const bool has_factor = file.has(scaling + "factor") || file.has(prefix + "rope.scale_linear");
  const auto type = file.get<std::string>(scaling + "type", has_factor ? "linear" : "none");  // as llama.cpp
  const bool llama3 = file.has_tensor("rope_freqs.weight");
  if (type == "none") return llama3 ? llama3_scaling(file, theta, head_dim) : nlohmann::ordered_json(nullptr);
  if (llama3) unsupported(file, "one rope scaling", cat(scaling, "type and rope_freqs.weight"));
  if (file.get<double>(scaling + "attn_factor", 1.0) != 1.0) {
    unsupported(file, cat(scaling, "attn_factor of 1"), cat(file.at<double>(scaling + "attn_factor")));
  }
  const bool old_key = !file.has(scaling + "factor") && file.has(prefix + "rope.scale_linear");
  const std::string factor_key = old_key ? prefix + "rope.scale_linear" : scaling + "factor";
  const double factor = finite(file, factor_key, file.at<double>(factor_key));
  if (type == "linear") return {{"rope_type", "linear"}, {"factor", factor}};
  if (type != "yarn") unsupported(file, cat(scaling, "type none, linear or yarn"), cat("'", type, "'"));
  nlohmann::ordered_json yarn = {
      {"rope_type", "yarn"},
      {"factor", factor},
      {"original_max_position_embeddings", file.at<int64_t>(scaling + "original_context_length")}};
  for (const char* key : {"beta_fast", "beta_slow"}) {
    const std::string from = scaling + "yarn_" + key;
    if (file.has(from)) yarn[key] = finite(file, from, file.at<double>(from));
  }
  return yarn;
}

// Keys, less the prefix, that every architecture may have.
constexpr const char* kKnownKeys[] = {"attention.causal",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.layer_norm_epsilon",
                                      "attention.layer_norm_rms_epsilon",
                                      "attention.sliding_window",
                                      "attention.value_length",
                                      "block_count",
                                      "context_length",
                                      "embedding_length",
                                      "expert_count",
                                      "expert_used_count",
                                      "feed_forward_length",
                                      "rope.dimension_count",
                                      "rope.freq_base",
                                      "rope.scale_linear",
                                      "rope.scaling.attn_factor",
                                      "rope.scaling.factor",
                                      "rope.scaling.finetuned",
                                      "rope.scaling.original_context_length",
                                      "rope.scaling.type",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow",
                                      "tensor_data_layout",
                                      "vocab_size"};

bool reads(const GgufArchitecture& family, const std::string& key) {
  return std::find(family.reads.begin(), family.reads.end(), key) != family.reads.end();
}

// What another key changes is unknown, and a model without it would compute something else.
void refuse_unknown_keys(const GgufFile& file, const GgufArchitecture& family) {
  const std::string prefix = family.name + ".";
  for (const std::string& key : file.keys()) {
    if (!key.starts_with(prefix)) continue;
    const std::string name = key.substr(prefix.size());
    const bool known =
        std::find(std::begin(kKnownKeys), std::end(kKnownKeys), name) != std::end(kKnownKeys) || reads(family, name);
    if (!known) unsupported(file, cat("keys of ", family.name, " that are implemented"), key);
  }
}

void refuse_what_is_not_in_the_model(const GgufFile& file, const GgufArchitecture& family) {
  const std::string prefix = family.name + ".";
  const auto type = file.get<std::string>("general.type", "model");
  if (type != "model") unsupported(file, "general.type model", cat("'", type, "'"));
  for (const char* key : {"expert_count", "attention.sliding_window"}) {
    if (reads(family, key) || file.get<int64_t>(prefix + key, 0) == 0) continue;
    unsupported(file, "a dense model with full attention", prefix + key);
  }
  for (const char* key : {"logit_scale", "attn_logit_softcapping", "final_logit_softcapping", "embedding_scale",
                          "residual_scale", "attention.scale"}) {
    if (reads(family, key) || !file.has(prefix + key)) continue;
    unsupported(file, "a model without scaled or capped values", prefix + key);
  }
  if (!file.get<bool>(prefix + "attention.causal", true))
    unsupported(file, "causal attention", prefix + "attention.causal");
}

// Times `all` it is not below `part`, of which readers of a config take the whole number.
double share_of(int64_t part, int64_t all) {
  const double share = static_cast<double>(part) / static_cast<double>(all);
  return static_cast<double>(all) * share < static_cast<double>(part) ? std::nextafter(share, 1.0) : share;
}

bool rotated_part(int64_t width, int64_t head_dim, const std::string& key) {
  return key == "rope.dimension_count" && width > 0 && width < head_dim;
}

// Of a number that may be stated for each layer: what all have, or the most where the family reads each layer's.
int64_t of_all_layers(const GgufFile& file, const GgufArchitecture& family, const std::string& name, int64_t layers) {
  const std::string key = cat(family.name, ".", name);
  if (!file.is_list(key)) return file.at<int64_t>(key);
  const std::vector<int64_t> each = gguf_of_each_layer(file, key, layers);
  const auto [least, most] = std::minmax_element(each.begin(), each.end());
  if (*least != *most && !reads(family, name)) {
    unsupported(file, cat("one ", key, " for all layers"), cat("from ", *least, " to ", *most));
  }
  return *most;
}

// RMSNorms' epsilon has a key of its own, which some files of RMSNorms lack (Nemotron-H).
std::string norm_eps_key(const GgufFile& file, const GgufArchitecture& family) {
  const std::string rms = family.name + ".attention.layer_norm_rms_epsilon";
  const bool of_rms = std::string_view(family.norm_eps) == GgufArchitecture{}.norm_eps || file.has(rms);
  return of_rms ? rms : family.name + ".attention.layer_norm_epsilon";
}

// The width of a head: stated as key_length, or as the rotated width where that is all of it.
int64_t head_dim_of(const GgufFile& file, const GgufArchitecture& family, int64_t hidden, int64_t heads) {
  const std::string prefix = family.name + ".";
  int64_t dim = hidden / heads;
  if (family.head_dim_is_rotary && file.has(prefix + "rope.dimension_count"))
    dim = file.at<int64_t>(prefix + "rope.dimension_count");
  if (file.has(prefix + "attention.key_length")) dim = file.at<int64_t>(prefix + "attention.key_length");
  if (family.latent_heads) dim = file.at<int64_t>(prefix + "rope.dimension_count");
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    if (family.latent_heads || reads(family, key)) continue;
    const auto other = file.get<int64_t>(prefix + key, dim);
    if (other == dim || (family.rotates_part && rotated_part(other, dim, key))) continue;
    unsupported(file, cat(prefix, key, " equal to the head's width ", dim), cat(other));
  }
  if (dim < 1 || dim > 65536 || dim % 2 != 0) unsupported(file, "an even head width up to 65536", cat(dim));
  return dim;
}

}  // namespace

const TensorRules& gguf_decoder_rules() {
  static const TensorRules rules = [] {
    TensorRules made;
    for (const auto& [gguf, hf] : {std::pair("token_embd", "model.embed_tokens"),
                                   std::pair("output_norm", "model.norm"), std::pair("output", "lm_head")}) {
      made.push_back(TensorRule::rename(gguf, hf));
    }
    for (const auto& [gguf, hf] :
         {std::pair("attn_norm", "input_layernorm"), std::pair("ffn_norm", "post_attention_layernorm"),
          std::pair("attn_q", "self_attn.q_proj"), std::pair("attn_k", "self_attn.k_proj"),
          std::pair("attn_v", "self_attn.v_proj"), std::pair("attn_output", "self_attn.o_proj"),
          std::pair("attn_q_norm", "self_attn.q_norm"), std::pair("attn_k_norm", "self_attn.k_norm"),
          std::pair("ffn_gate", "mlp.gate_proj"), std::pair("ffn_up", "mlp.up_proj"),
          std::pair("ffn_down", "mlp.down_proj")}) {
      made.push_back(TensorRule::rename(cat("blk.*.", gguf), cat("model.layers.*.", hf)));
    }
    return made;
  }();
  return rules;
}

TensorRules with_gguf_decoder_rules(TensorRules own) {
  own.insert(own.end(), gguf_decoder_rules().begin(), gguf_decoder_rules().end());
  return own;
}

TensorRule gguf_packed_attention() {
  const std::string part = "model.layers.*.self_attn.";
  return TensorRule::split("blk.*.attn_qkv", {part + "q_proj", part + "k_proj", part + "v_proj"});
}

TensorRule gguf_packed_gate() {
  return TensorRule::split("blk.*.ffn_up", {"model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj"});
}

std::vector<int64_t> gguf_of_each_layer(const GgufFile& file, const std::string& key, int64_t layers) {
  constexpr int64_t kMaxLayers = 10000;
  if (layers < 1 || layers > kMaxLayers) unsupported(file, cat("1 to ", kMaxLayers, " layers"), cat(layers));
  if (!file.is_list(key)) return std::vector<int64_t>(layers, file.at<int64_t>(key));
  auto each = file.at<std::vector<int64_t>>(key);
  if (static_cast<int64_t>(each.size()) != layers) {
    unsupported(file, cat(layers, " values of ", key, ", one a layer"), cat(each.size()));
  }
  return each;
}

void add_gguf_windows(const GgufFile& file, const std::string& prefix, int64_t pattern,
                      nlohmann::ordered_json& config) {
  const std::string window = prefix + "attention.sliding_window", key = window + "_pattern";
  const auto width = file.get<int64_t>(window, 0);
  config["sliding_window"] = width == 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(width);
  if (width == 0 || !file.is_list(key)) {
    config["sliding_window_pattern"] = width == 0 ? 1 : file.get<int64_t>(key, pattern);
    return;
  }
  for (const int64_t slides : gguf_of_each_layer(file, key, config.at("num_hidden_layers").get<int64_t>())) {
    config["layer_types"].push_back(slides != 0 ? "sliding_attention" : "full_attention");
  }
}

void rename_gguf_keys(nlohmann::ordered_json& config, const GgufConfigNames& names) {
  for (const auto& [ours, theirs] : names) {
    config[theirs] = config.at(ours);
    config.erase(ours);
  }
}

// For each head: the rows that rotate together stand side by side in llama.cpp, half a head apart in Hugging Face's.
at::Tensor half_split_rows(const at::Tensor& interleaved, int64_t heads) {
  const int64_t rows = interleaved.size(0);
  if (heads < 1 || heads > rows || rows % (2 * heads) != 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("queries or keys of ", heads, " heads of even width"),
                 .got = cat(rows, " rows"),
                 .next = "fetch the file again: its head counts and its tensors do not belong together"});
  }
  return interleaved.view({heads, rows / heads / 2, 2, -1}).transpose(1, 2).reshape(interleaved.sizes());
}

Json config_from_gguf(const GgufFile& file, const GgufArchitecture& family) {
  const std::string prefix = family.name + ".";
  refuse_what_is_not_in_the_model(file, family);
  const auto hidden = file.at<int64_t>(prefix + "embedding_length");
  const auto heads = file.at<int64_t>(prefix + "attention.head_count");
  if (heads < 1 || hidden < 1) unsupported(file, "a positive width and head count", cat(hidden, " and ", heads));
  const int64_t head_dim = head_dim_of(file, family, hidden, heads);
  const double theta = finite(file, prefix + "rope.freq_base", file.get<double>(prefix + "rope.freq_base", 10000.0));

  nlohmann::ordered_json config;
  config["architectures"] = {family.class_name};
  config["model_type"] = family.model_type;
  config["vocab_size"] = file.has(prefix + "vocab_size")
                             ? file.at<int64_t>(prefix + "vocab_size")
                             : static_cast<int64_t>(file.at<std::vector<std::string>>("tokenizer.ggml.tokens").size());
  config["hidden_size"] = hidden;
  const auto layers = file.at<int64_t>(prefix + "block_count");
  const bool has_key_heads = file.has(prefix + "attention.head_count_kv");
  config["intermediate_size"] = of_all_layers(file, family, "feed_forward_length", layers);
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] =
      has_key_heads ? of_all_layers(file, family, "attention.head_count_kv", layers) : heads;
  config["head_dim"] = head_dim;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = file.at<int64_t>(prefix + "context_length");
  const std::string eps = norm_eps_key(file, family);
  config[family.norm_eps] = finite(file, eps, file.at<double>(eps));
  const auto turns = file.get<int64_t>(prefix + "rope.dimension_count", head_dim);
  if (family.rotates_part && turns != head_dim) {
    config["partial_rotary_factor"] = share_of(turns, head_dim);
  }
  config["rope_theta"] = theta;
  config["rope_scaling"] = rope_scaling(file, prefix, theta, head_dim);
  config["attention_bias"] = file.has_tensor("blk.0.attn_q.bias") || file.has_tensor("blk.0.attn_qkv.bias");
  config["mlp_bias"] = file.has_tensor("blk.0.ffn_up.bias");
  config["tie_word_embeddings"] = !file.has_tensor("output.weight");
  for (const auto& [key, name] : {std::pair("bos_token_id", "tokenizer.ggml.bos_token_id"),
                                  std::pair("eos_token_id", "tokenizer.ggml.eos_token_id"),
                                  std::pair("pad_token_id", "tokenizer.ggml.padding_token_id")}) {
    if (file.has(name)) config[key] = file.at<int64_t>(name);
  }
  if (family.extend != nullptr) family.extend(file, prefix, config);
  refuse_unknown_keys(file, family);
  return Json::parse(config.dump(), cat("the metadata of ", file.path().string()));
}

GgufVocabulary vocabulary_from_gguf(const GgufFile& file) {
  const std::string prefix = "tokenizer.ggml.";
  GgufVocabulary vocabulary;
  vocabulary.where = file.path().string();
  vocabulary.architecture = file.at<std::string>("general.architecture");
  vocabulary.model = file.at<std::string>(prefix + "model");
  vocabulary.pre = file.get<std::string>(prefix + "pre", "");
  vocabulary.tokens = file.at<std::vector<std::string>>(prefix + "tokens");
  vocabulary.merges = file.get(prefix + "merges", std::vector<std::string>());
  const auto scores = file.get(prefix + "scores", std::vector<double>());
  const auto types = file.get(prefix + "token_type", std::vector<int64_t>());
  for (const auto& [key, size] : {std::pair("scores", scores.size()), std::pair("token_type", types.size())}) {
    if (size == 0 || size == vocabulary.tokens.size()) continue;
    unsupported(file, cat(vocabulary.tokens.size(), " values of ", prefix, key, ", one a token"), cat(size));
  }
  vocabulary.scores.assign(scores.begin(), scores.end());
  for (const int64_t type : types) {
    if (type < 0 || type > 6) unsupported(file, cat(prefix, "token_type from 0 to 6"), cat(type));
    vocabulary.token_types.push_back(static_cast<int32_t>(type));
  }
  const auto id = [&](const std::string& key) -> std::optional<int64_t> {
    if (!file.has(prefix + key)) return std::nullopt;
    const auto value = file.at<int64_t>(prefix + key);
    if (value < 0 || value >= static_cast<int64_t>(vocabulary.tokens.size())) {
      unsupported(file, cat(prefix, key, " below ", vocabulary.tokens.size()), cat(value));
    }
    return value;
  };
  vocabulary.bos = id("bos_token_id");
  vocabulary.eos = id("eos_token_id");
  vocabulary.unk = id("unknown_token_id");
  vocabulary.pad = id("padding_token_id");
  const auto flag = [&](const std::string& key) -> std::optional<bool> {
    return file.has(prefix + key) ? std::optional(file.at<bool>(prefix + key)) : std::nullopt;
  };
  vocabulary.add_bos = flag("add_bos_token");
  vocabulary.add_eos = flag("add_eos_token");
  vocabulary.add_space_prefix = flag("add_space_prefix");
  return vocabulary;
}

std::optional<std::string> chat_template_from_gguf(const GgufFile& file) {
  if (!file.has("tokenizer.chat_template")) return std::nullopt;
  return file.at<std::string>("tokenizer.chat_template");
}

}  // namespace hotswap
