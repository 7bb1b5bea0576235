#include "hotswap/models/lora_config.h"

#include <algorithm>
#include <array>

#include "hotswap/base/error.h"
#include "hotswap/models/formats/lora_rules.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

// The one whose files hotswap writes and reads back in its tests.
constexpr const char* kPeftVersion = "0.21.2";

[[noreturn]] void refuse_setting(const Json& json, const char* key, const std::string& expected,
                                 const std::string& next) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = expected,
               .got = cat(key, " = ", json.child(key).raw().dump(), " in ", json.where()),
               .next = next});
}

ModuleNames module_names(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (!found) return {};
  return found->is_string() ? ModuleNames(found->as<std::string>())
                            : ModuleNames(found->as<std::vector<std::string>>());
}

std::vector<std::string> list_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (!found) return {};
  return found->is_string() ? std::vector{found->as<std::string>()} : found->as<std::vector<std::string>>();
}

template <typename T>
std::vector<std::pair<std::string, T>> pattern_of(const Json& json, const char* key) {
  std::vector<std::pair<std::string, T>> read;
  const auto found = json.find(key);
  if (!found) return read;
  for (const auto& [pattern, value] : found->items()) read.emplace_back(pattern, value.template as<T>());
  return read;
}

std::string initialisation_of(const Json& json) {
  const auto found = json.find("init_lora_weights");
  if (!found) return "true";
  return found->is_bool() ? (found->as<bool>() ? "true" : "false") : found->as<std::string>();
}

OutJson json_of(const ModuleNames& names) {
  if (names.empty()) return nullptr;
  return names.pattern.empty() ? OutJson(names.names) : OutJson(names.pattern);
}

template <typename T>
OutJson json_of(const std::vector<std::pair<std::string, T>>& pattern) {
  OutJson json = OutJson::object();
  for (const auto& [name, value] : pattern) json[name] = value;
  return json;
}

template <typename T>
OutJson or_null(const std::vector<T>& list) {
  return list.empty() ? OutJson(nullptr) : OutJson(list);
}

// What computes here, and does not train.
void check_trained(const Json& json, bool fresh) {
  const std::string next = "leave it out, or train this adapter with peft in Python";
  for (const char* key : {"lora_bias", "ensure_weight_tying"}) {
    if (json.get<bool>(key, false)) refuse_setting(json, key, cat("an adapter without ", key, " to train"), next);
  }
  const auto dropout = json.get<double>("lora_dropout", 0);
  if (!(dropout >= 0 && dropout < 1))
    refuse_setting(json, "lora_dropout", "a lora_dropout from 0 to below 1", "lower it");
  constexpr std::array<const char*, 3> kDrawn = {"true", "false", "gaussian"};
  const std::string init = initialisation_of(json);
  if (fresh && std::find(kDrawn.begin(), kDrawn.end(), init) == kDrawn.end()) {
    refuse_setting(json, "init_lora_weights", "init_lora_weights of true, false or gaussian for a new adapter",
                   "take one of them, or begin the adapter with peft and go on from its folder (--adapter)");
  }
}

// A part of adapter_config.json, made whole enough for LoraRules.
Json completed(const Json& json) {
  OutJson whole = json.raw();
  if (!json.has("peft_type")) whole["peft_type"] = "LORA";
  if (!json.has("target_modules")) whole["target_modules"] = OutJson::array({"of the model's type"});
  return Json::parse(whole.dump(), json.where());
}

}  // namespace

// LoraRules speaks of the files of an adapter that is trained already.
static void check_rules(const Json& json, bool fresh) {
  try {
    LoraRules::from_json(completed(json));
  } catch (const Error& error) {
    if (!fresh) throw;
    throw Error({.kind = error.kind(),
                 .wanted = error.wanted(),
                 .got = error.got(),
                 .next = "correct it there, or leave it out: it is not trained here, and may be in peft"});
  }
}

LoraConfig LoraConfig::from_json(const Json& json, bool fresh) {
  check_rules(json, fresh);
  check_trained(json, fresh);
  LoraConfig config;
  config.r = json.get<int64_t>("r", config.r);
  config.lora_alpha = json.get<double>("lora_alpha", config.lora_alpha);
  config.lora_dropout = json.get<double>("lora_dropout", 0);
  config.target_modules = module_names(json, "target_modules");
  if (json.has("target_modules") && config.target_modules.empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "names, a regular expression or \"all-linear\" as target_modules",
                 .got = cat("none in ", json.where()),
                 .next = "name some, such as q_proj, or leave the key out for peft's default"});
  }
  config.exclude_modules = module_names(json, "exclude_modules");
  if (const auto layers = json.find("layers_to_transform")) {
    config.layers_to_transform =
        layers->is_array() ? layers->as<std::vector<int64_t>>() : std::vector{layers->as<int64_t>()};
  }
  config.layers_pattern = list_of(json, "layers_pattern");
  config.bias = json.get<std::string>("bias", config.bias);
  config.use_rslora = json.get<bool>("use_rslora", false);
  config.use_dora = json.get<bool>("use_dora", false);
  config.modules_to_save = list_of(json, "modules_to_save");
  config.rank_pattern = pattern_of<int64_t>(json, "rank_pattern");
  config.alpha_pattern = pattern_of<double>(json, "alpha_pattern");
  config.init_lora_weights = initialisation_of(json);
  config.base_model_name_or_path = json.get<std::string>("base_model_name_or_path", "");
  config.read_from = json.where();
  return config;
}

LoraConfig LoraConfig::read(const std::filesystem::path& file, bool fresh) {
  return from_json(Json::read(file), fresh);
}

nlohmann::ordered_json LoraConfig::to_json() const {
  const bool is_bool = init_lora_weights == "true" || init_lora_weights == "false";
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"peft_version", kPeftVersion},
          {"base_model_name_or_path",
           base_model_name_or_path.empty() ? OutJson(nullptr) : OutJson(base_model_name_or_path)},
          {"inference_mode", true},
          {"r", r},
          {"lora_alpha", lora_alpha},
          {"lora_dropout", lora_dropout},
          {"target_modules", json_of(target_modules)},
          {"exclude_modules", json_of(exclude_modules)},
          {"layers_to_transform", or_null(layers_to_transform)},
          {"layers_pattern", or_null(layers_pattern)},
          {"bias", bias},
          {"use_rslora", use_rslora},
          {"use_dora", use_dora},
          {"modules_to_save", or_null(modules_to_save)},
          {"rank_pattern", json_of(rank_pattern)},
          {"alpha_pattern", json_of(alpha_pattern)},
          {"init_lora_weights", is_bool ? OutJson(init_lora_weights == "true") : OutJson(init_lora_weights)},
          {"fan_in_fan_out", false}};
}

std::vector<std::string> default_target_modules(const std::string& model_type) {
  if (model_type == "gpt2") return {"c_attn"};
  if (model_type == "gpt_neox" || model_type == "falcon") return {"query_key_value"};
  if (model_type == "nemotron_h") return {"q_proj", "k_proj", "v_proj", "o_proj"};
  if (model_type == "phi") return {"q_proj", "v_proj", "fc1", "fc2"};
  constexpr std::array<const char*, 9> kAttention = {"llama", "mistral", "mixtral",     "qwen2",   "qwen3",
                                                     "gemma", "gemma2",  "gemma3_text", "stablelm"};
  if (std::find(kAttention.begin(), kAttention.end(), model_type) != kAttention.end()) return {"q_proj", "v_proj"};
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("target_modules: peft has no default for the model_type ", model_type),
               .got = "none",
               .next = "name modules, such as q_proj and v_proj, or take all-linear"});
}

}  // namespace hotswap
