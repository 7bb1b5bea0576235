// One name of transformers' TrainingArguments, and what a run here makes of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hotswap {

enum class ArgumentKind {
  kHonoured,
  kNoEffect,  // any value passes: nothing here depends on it
  kRefused,   // its default passes, and what else its row lists
};

struct ArgumentRow {
  std::string name;
  ArgumentKind kind;
  std::string why;                                  // of the two others
  nlohmann::ordered_json fallback = nullptr;        // transformers' default
  std::vector<nlohmann::ordered_json> passes = {};  // of a refused one, beside null and the default
  std::string help = {};                            // of a honoured one
  bool is_switch = false;                           // a flag without a value means true
};

// Every name of transformers.
const std::vector<ArgumentRow>& argument_rows();

}  // namespace hotswap
