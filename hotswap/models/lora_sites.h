// The modules of transformers that may have a LoRA adapter, and what they are in a model here. For sources of this
// room.
#pragma once

#include <map>
#include <string>

#include "hotswap/layers/linear.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/formats/lora_rules.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";  // of every name in an adapter's file

// Names of transformers. Those that module_names changes for rows of the kernel report are of experts, whose tensors
// have the names of the model here.
WholeName transformers_name(const CausalLM& model, const std::string& name);

// A module of transformers and what it is here: a Linear, or several that are the parts of one, or an Embedding.
struct LoraSite {
  std::map<size_t, Linear*> parts = {};
  std::map<size_t, std::string> names = {};  // theirs
  Embedding* embedding = nullptr;
  TensorRule::Change moves = nullptr;  // see WholeName
  // Rows in an adapter's order, sorted by part; and back.
  Tensor in_parts(const Tensor& rows) const { return moves && rows.defined() ? moves(rows) : rows; }
  Tensor as_stored(const Tensor& rows) const { return moves ? rows_before(moves, rows) : rows; }
  const Weight& weight() const;  // of the first
  int64_t in() const;
  int64_t out() const;
  const Adapter* adapter() const;  // of the first; null: none
};

struct LoraSites {
  explicit LoraSites(CausalLM& model);
  std::map<std::string, LoraSite> all;  // by transformers' names
  std::string head, embedding;          // by transformers' names

  bool targets(const LoraRules& rules, const std::string& module) const;
};

}  // namespace hotswap
