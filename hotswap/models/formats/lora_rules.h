// What adapter_config.json of a LoRA adapter means for each module of a model, read strictly: every key is honoured, or
// has no effect on what an adapter computes, or must be off. Another key, or a value that is not implemented, is an
// Error by name. What is trained by it is in models/lora_config.h.
//
//   const LoraRules rules = LoraRules::read("my-adapter/adapter_config.json");
//   if (rules.targets({"model.layers.0.self_attn.q_proj"})) ... rules.rank_of(...), rules.scale_of(...)
//
// Modules have the names that transformers gives them, without peft's "base_model.model.".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/regex.h"

namespace hotswap {

// A Python regular expression that a whole name must match.
class NamePattern {
 public:
  NamePattern(const std::string& pattern, const std::string& where);
  bool matches(const std::string& name) const;

 private:
  tokenizers::Regex regex_;
};

// What may have an adapter.
struct LoraModule {
  std::string name;
  bool is_linear = true;
  bool is_head = false;  // the output head, which "all-linear" leaves out
};

enum class LoraBias { kNone, kAll, kLoraOnly };

class LoraRules {
 public:
  static LoraRules read(const std::filesystem::path& file) { return from_json(Json::read(file)); }
  static LoraRules from_json(const Json& json);

  bool targets(const LoraModule& module) const;
  // Is this one, or one around it, among modules_to_save?
  bool saves(const std::string& module) const;
  static bool saves_by(const std::string& entry, const std::string& module);  // by this entry of modules_to_save
  int64_t rank_of(const std::string& module) const;
  double scale_of(const std::string& module) const;

  LoraBias bias = LoraBias::kNone;
  bool lora_bias = false, use_dora = false;
  bool ensure_weight_tying = false;  // of a tied model: what targets the embedding targets the output head, too
  std::vector<std::string> modules_to_save;
  std::string base_model;  // base_model_name_or_path, for messages; may be empty

 private:
  using Named = std::pair<NamePattern, double>;
  explicit LoraRules(const Json& json);
  void read_ranks(const Json& json);
  void read_targets(const Json& json);
  void read_layers(const Json& json);
  bool excludes(const std::string& module) const;
  bool in_layers(const std::string& module) const;

  int64_t rank_ = 0;
  double alpha_ = 0;
  bool use_rslora_ = false;
  std::vector<Named> ranks_, alphas_;
  bool all_linear_ = false;
  std::vector<std::string> target_names_, exclude_names_;
  std::optional<NamePattern> target_pattern_, exclude_pattern_;
  std::vector<NamePattern> around_saved_;  // peft leaves targets inside modules_to_save out
  std::optional<std::vector<int64_t>> layers_;
  std::vector<std::string> layers_patterns_;
};

}  // namespace hotswap
