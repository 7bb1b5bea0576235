// What a new LoRA adapter is: peft's LoraConfig, by its names and with its defaults, and as adapter_config.json has it.
//
//   model->add_adapter({.r = 16, .lora_alpha = 32, .target_modules = "all-linear"});
//   model->add_adapter({.target_modules = {"q_proj", "v_proj"}, .rank_pattern = {{"v_proj", 4}}});
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

// Names, each of which is a module's whole name or its end; or one text: a regular expression that a whole name must
// match, or "all-linear".
struct ModuleNames {
  ModuleNames() = default;
  ModuleNames(std::initializer_list<const char*> list) : names(list.begin(), list.end()) {}
  ModuleNames(std::vector<std::string> list) : names(std::move(list)) {}
  ModuleNames(const char* text) : pattern(text) {}
  ModuleNames(std::string text) : pattern(std::move(text)) {}
  bool empty() const { return names.empty() && pattern.empty(); }

  std::vector<std::string> names = {};
  std::string pattern = {};
};

struct LoraConfig {
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;          // of what A reads, in training; from 0 to below 1
  ModuleNames target_modules = {};  // empty: those that peft takes for the model's type, such as q_proj and v_proj
  ModuleNames exclude_modules = {};
  std::vector<int64_t> layers_to_transform = {};  // empty: all
  std::vector<std::string> layers_pattern = {};
  std::string bias = "none";  // "all", "lora_only": biases of the model that train, too
  bool use_rslora = false;    // scaled by lora_alpha / sqrt(r) instead of lora_alpha / r
  bool use_dora = false;
  std::vector<std::string> modules_to_save = {};                   // whole tensors that train
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};  // a regular expression: r; the first that fits
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  std::string init_lora_weights = "true";  // "true": B is 0; "gaussian": so, A normal; "false": neither
  std::string base_model_name_or_path = {};
  std::string read_from = {};  // its file, for messages

  // adapter_config.json or a part of it. Error for a key that changes what is trained and is not implemented; `fresh`:
  // an adapter that begins here, for which an initialisation that is not implemented is an Error too.
  static LoraConfig from_json(const Json& json, bool fresh = true);
  static LoraConfig read(const std::filesystem::path& file, bool fresh = true);
  // As adapter_config.json of peft, which reads it.
  nlohmann::ordered_json to_json() const;
};

// The target_modules of peft 0.21 for a model_type of config.json; Error where it has none.
std::vector<std::string> default_target_modules(const std::string& model_type);

}  // namespace hotswap
