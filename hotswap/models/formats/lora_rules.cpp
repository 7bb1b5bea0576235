#include "hotswap/models/formats/lora_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

// What this file reads.
constexpr std::array<std::string_view, 19> kHonoured = {"peft_type",          "r",
                                                        "lora_alpha",         "rank_pattern",
                                                        "alpha_pattern",      "use_rslora",
                                                        "lora_bias",          "target_modules",
                                                        "exclude_modules",    "layers_to_transform",
                                                        "layers_pattern",     "bias",
                                                        "modules_to_save",    "use_dora",
                                                        "init_lora_weights",  "task_type",
                                                        "fan_in_fan_out",     "base_model_name_or_path",
                                                        "ensure_weight_tying"};

// Without effect on what a trained adapter computes: how it was begun, trained and saved. Initialisations that change
// the base model are checked by init_lora_weights.
constexpr std::array<std::string_view, 12> kWithoutEffect = {
    "peft_version", "auto_mapping", "revision",       "inference_mode", "lora_dropout",      "loftq_config",
    "eva_config",   "corda_config", "lora_ga_config", "megatron_core",  "qalora_group_size", "runtime_config"};

// Each changes what is computed, and is not implemented: null, false, and an empty list or object are off.
constexpr std::array<std::string_view, 13> kMustBeOff = {"target_parameters", "trainable_token_indices",
                                                         "layer_replication", "alora_invocation_tokens",
                                                         "use_qalora",        "use_bdlora",
                                                         "arrow_config",      "kasa_config",
                                                         "velora_config",     "monteclora_config",
                                                         "megatron_config",   "enable_lora",
                                                         "merge_weights"};

template <size_t N>
bool has(const std::array<std::string_view, N>& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool is_off(const nlohmann::ordered_json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

const std::string kMergeInPython =
    "merge the adapter in Python: merge_and_unload() of peft, then save_pretrained, and load that model";

void refuse_key(const Json& json, const std::string& key, const std::string& expected, const std::string& next) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = expected,
               .got = cat(key, " = ", json.child(key).raw().dump(), " in ", json.where()),
               .next = next});
}

void check_keys(const Json& json) {
  for (const auto& [key, value] : json.items()) {
    if (has(kHonoured, key) || has(kWithoutEffect, key)) continue;
    if (has(kMustBeOff, key) ? is_off(value.raw()) : value.is_null()) continue;
    const bool experts = key == "target_parameters";
    refuse_key(json, key,
               experts                ? "an adapter without target_parameters (experts' weights)"
               : has(kMustBeOff, key) ? cat("a LoRA adapter without ", key)
                                      : cat("keys of peft's LoraConfig that are known here, and not ", key),
               kMergeInPython);
  }
}

// Initialisations that take what they begin with out of the base weights: their adapters are a difference from weights
// that no checkpoint holds, until peft converts them.
void check_initialisation(const Json& json) {
  const auto found = json.find("init_lora_weights");
  if (!found || found->is_bool()) return;
  const auto name = found->as<std::string>();
  constexpr std::array<std::string_view, 4> kOfTheAdapterAlone = {"gaussian", "eva", "orthogonal", "mica"};
  if (has(kOfTheAdapterAlone, name)) return;
  const bool residual =
      name.starts_with("pissa") || name.starts_with("corda") || name == "olora" || name == "loftq" || name == "lora_ga";
  refuse_key(json, "init_lora_weights",
             residual ? "an adapter of the base model's own weights: this initialisation changed them"
                      : "init_lora_weights of true, false, gaussian, eva, orthogonal or mica",
             residual
                 ? "save it in Python with save_pretrained(..., path_initial_model_for_weight_conversion=...), which "
                   "makes a plain LoRA adapter of it"
                 : kMergeInPython);
}

[[noreturn]] void corrupt(const Json& json, const std::string& expected, const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = expected,
               .got = cat(got, " in ", json.where()),
               .next = "save the adapter again with peft's save_pretrained"});
}

double positive_of(const Json& json, const std::string& where, double value, bool whole) {
  if (value > 0 && std::isfinite(value) && (!whole || (value == std::floor(value) && value < 1e9))) return value;
  corrupt(json, cat("a positive ", whole ? "whole number" : "number", " as ", where), cat(value));
}

std::vector<std::string> names_in(const Json& json) {
  return json.is_string() ? std::vector<std::string>{json.as<std::string>()} : json.as<std::vector<std::string>>();
}

// "b" in "a.b", not in "a.xb".
bool ends_with_name(const std::string& module, const std::string& name) {
  return module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.';
}

bool lists(const std::vector<std::string>& names, const std::string& module) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return module == name || ends_with_name(module, name); });
}

std::optional<int64_t> index_of(const std::string& part) {
  const bool digits = !part.empty() && part.size() <= 9 && part.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::optional(std::stoll(part)) : std::nullopt;
}

// Of the first ".<name>.<index>." in the module's name; with `pattern`, of the first "<pattern>.<index>.".
std::optional<int64_t> layer_of(const std::string& module, const std::vector<std::string>& patterns) {
  const auto parts = split(module, '.');
  if (patterns.empty()) {
    for (size_t i = 2; i + 1 < parts.size(); ++i) {
      if (const auto index = index_of(parts[i])) return index;
    }
    return std::nullopt;
  }
  for (const std::string& pattern : patterns) {
    const auto before = split(pattern, '.');
    for (size_t i = before.size(); i + 1 < parts.size(); ++i) {
      const auto index = index_of(parts[i]);
      const auto from = parts.begin() + static_cast<int64_t>(i - before.size());
      if (index && std::equal(before.begin(), before.end(), from)) return index;
    }
  }
  return std::nullopt;
}

}  // namespace

NamePattern::NamePattern(const std::string& pattern, const std::string& where)
    : regex_(cat("\\A(?:", pattern, ")\\z"), where) {}

bool NamePattern::matches(const std::string& name) const {
  std::vector<tokenizers::Stretch> found;
  regex_.cut(name, found);
  return found.size() == 1 && found.front().found;
}

LoraRules LoraRules::from_json(const Json& json) {
  const auto type = json.at<std::string>("peft_type");
  if (type != "LORA") refuse_key(json, "peft_type", "an adapter of peft_type LORA", kMergeInPython);
  check_keys(json);
  check_initialisation(json);
  return LoraRules(json);
}

LoraRules::LoraRules(const Json& json)
    : lora_bias(json.get<bool>("lora_bias", false)),
      use_dora(json.get<bool>("use_dora", false)),
      ensure_weight_tying(json.get<bool>("ensure_weight_tying", false)),
      base_model(json.get<std::string>("base_model_name_or_path", "")),
      use_rslora_(json.get<bool>("use_rslora", false)) {
  const auto task = json.get<std::string>("task_type", "CAUSAL_LM");
  if (task != "CAUSAL_LM")
    refuse_key(json, "task_type", "an adapter of a causal language model (CAUSAL_LM)", "take one");
  const auto biases = json.get<std::string>("bias", "none");
  if (biases != "none" && biases != "all" && biases != "lora_only")
    refuse_key(json, "bias", "bias of none, all or lora_only", kMergeInPython);
  bias = biases == "none" ? LoraBias::kNone : biases == "all" ? LoraBias::kAll : LoraBias::kLoraOnly;
  // fan_in_fan_out is of layers that store [in, out], GPT-2's Conv1D, whose weights are the other way round here, and A
  // and B as of any layer. For a Linear peft itself turns it off.
  json.get<bool>("fan_in_fan_out", false);
  read_ranks(json);
  read_targets(json);
  read_layers(json);
}

void LoraRules::read_ranks(const Json& json) {
  rank_ = static_cast<int64_t>(positive_of(json, "r", json.get<double>("r", 8), true));
  alpha_ = json.get<double>("lora_alpha", 8);
  if (!std::isfinite(alpha_)) corrupt(json, "a finite lora_alpha", cat(alpha_));
  const auto patterns = [&](const char* key, bool ranks) {
    std::vector<Named> read;
    const auto found = json.find(key);
    if (!found) return read;
    for (const auto& [pattern, value] : found->items()) {
      double number = value.as<double>();
      if (ranks) number = positive_of(*found, pattern, number, true);
      read.emplace_back(NamePattern(cat("(?:.*\\.)?(?:", pattern, ")"), found->where()), number);
    }
    return read;
  };
  ranks_ = patterns("rank_pattern", true);
  alphas_ = patterns("alpha_pattern", false);
}

void LoraRules::read_targets(const Json& json) {
  if (const auto saved = json.find("modules_to_save")) modules_to_save = names_in(*saved);
  for (const std::string& name : modules_to_save)
    around_saved_.emplace_back(cat("(?:^|.*\\.)", name, "(?:$|\\..*)"), cat(json.where(), ": modules_to_save"));
  const auto read = [&](const char* key, std::vector<std::string>& names, std::optional<NamePattern>& pattern) {
    const auto found = json.find(key);
    if (found && found->is_string()) {
      pattern.emplace(found->as<std::string>(), found->where());
    } else if (found) {
      names = found->as<std::vector<std::string>>();
    }
    return found.has_value();
  };
  if (json.has("target_modules") && json.child("target_modules").raw() == "all-linear") {
    all_linear_ = true;
  } else if (!read("target_modules", target_names_, target_pattern_)) {
    corrupt(json, "target_modules: names, a regular expression, or all-linear", "none");
  }
  read("exclude_modules", exclude_names_, exclude_pattern_);
}

void LoraRules::read_layers(const Json& json) {
  if (const auto layers = json.find("layers_to_transform")) {
    layers_ = layers->is_array() ? layers->as<std::vector<int64_t>>() : std::vector<int64_t>{layers->as<int64_t>()};
    if (layers_->empty()) layers_.reset();
  }
  if (const auto patterns = json.find("layers_pattern")) layers_patterns_ = names_in(*patterns);
  std::erase(layers_patterns_, "");
  for (const std::string& pattern : layers_patterns_) {
    if (pattern.find_first_of("\\^$*+?()[]{}|") != std::string::npos)
      refuse_key(json, "layers_pattern", "a plain name as layers_pattern", "name the layers in target_modules");
  }
  const bool by_name = !all_linear_ && !target_pattern_;
  if (by_name || (!layers_ && layers_patterns_.empty())) return;
  corrupt(json, "layers_to_transform and layers_pattern beside a list of target_modules", "a string as target_modules");
}

bool LoraRules::excludes(const std::string& module) const {
  if (exclude_pattern_ ? exclude_pattern_->matches(module) : lists(exclude_names_, module)) return true;
  return std::any_of(around_saved_.begin(), around_saved_.end(),
                     [&](const NamePattern& pattern) { return pattern.matches(module); });
}

bool LoraRules::in_layers(const std::string& module) const {
  if (!layers_) return true;
  const auto layer = layer_of(module, layers_patterns_);
  return layer && std::find(layers_->begin(), layers_->end(), *layer) != layers_->end();
}

bool LoraRules::targets(const LoraModule& module) const {
  if (excludes(module.name)) return false;
  if (all_linear_) return module.is_linear && !module.is_head;
  if (target_pattern_) return target_pattern_->matches(module.name);
  // A whole name counts, whatever layers_to_transform is.
  if (std::find(target_names_.begin(), target_names_.end(), module.name) != target_names_.end()) return true;
  return lists(target_names_, module.name) && in_layers(module.name);
}

// By the end of the name, and not only whole parts of it, as peft compares: "norm" means input_layernorm, too.
bool LoraRules::saves_by(const std::string& entry, const std::string& module) {
  std::string around = module;
  while (true) {
    if (around.ends_with(entry)) return true;
    const size_t dot = around.rfind('.');
    if (dot == std::string::npos) return false;
    around.resize(dot);
  }
}

bool LoraRules::saves(const std::string& module) const {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const std::string& entry) { return saves_by(entry, module); });
}

int64_t LoraRules::rank_of(const std::string& module) const {
  for (const auto& [pattern, rank] : ranks_) {
    if (pattern.matches(module)) return static_cast<int64_t>(rank);
  }
  return rank_;
}

double LoraRules::scale_of(const std::string& module) const {
  double alpha = alpha_;
  for (const auto& [pattern, value] : alphas_) {
    if (!pattern.matches(module)) continue;
    alpha = value;
    break;
  }
  const auto rank = static_cast<double>(rank_of(module));
  return alpha / (use_rslora_ ? std::sqrt(rank) : rank);
}

}  // namespace hotswap
