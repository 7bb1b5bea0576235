// How a checkpoint's tensors become a model's, and back: under another name, many as one, one as many.
//
//   TensorRules rules = {
//       TensorRule::rename("blk.*.attn_q", "model.layers.*.self_attn.q_proj"),
//       TensorRule::stack({"model.layers.*.mlp.experts.*.up_proj"}, "model.layers.*.mlp.experts.up_proj"),
//       TensorRule::split("model.layers.*.mlp.gate_up_proj",
//                         {"model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj"}),
//   };
//
// A pattern is the beginning of a name, in whole parts between dots; * is a number. What follows it in the name
// (".weight") follows the new name too. The first rule whose pattern fits counts; other names stay.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/models/formats/expert_tensors.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {

struct TensorRule {
  enum class Kind { kRename, kStack, kSplit, kDecode, kJoin, kLeaveOut };
  using Change = std::function<at::Tensor(const at::Tensor&)>;
  // Of several stored tensors, in the order of `from`, to one: its shape, and its numbers in that dtype.
  struct Decode {
    std::vector<int64_t> (*shape)(const std::vector<std::vector<int64_t>>& parts);
    at::Tensor (*tensor)(const std::vector<at::Tensor>& parts, at::ScalarType dtype);
    // As a weight that stays packed; null, or nullopt: there is none.
    std::optional<Weight> (*packed)(const std::vector<at::Tensor>& parts) = nullptr;
  };

  // `change` reorders what is read, where a format keeps it in another order; such rules serve reading only.
  static TensorRule rename(std::string from, std::string to, Change change = nullptr) {
    return {Kind::kRename, {std::move(from)}, {std::move(to)}, std::move(change)};
  }
  // The same where `change` moves whole rows and nothing else: it does so to packed ones too, and is undone in saving.
  static TensorRule move_rows(std::string from, std::string to, Change change) {
    TensorRule rule = rename(std::move(from), std::move(to), std::move(change));
    rule.moves_rows = true;
    return rule;
  }
  // Each of `from` has one * more than `to`: its last one counts 0, 1, ... along a new first dimension. Several lie one
  // behind the other along the second, all of one shape.
  static TensorRule stack(std::vector<std::string> from, std::string to) {
    return {Kind::kStack, std::move(from), {std::move(to)}};
  }
  // Along the first dimension, as wide as the model's tensors of those names are.
  static TensorRule split(std::string from, std::vector<std::string> to) {
    return {Kind::kSplit, {std::move(from)}, std::move(to)};
  }
  // The same after `change`, which only moves whole rows: projections that are packed head by head.
  static TensorRule split_rows(std::string from, std::vector<std::string> to, Change change) {
    TensorRule rule = split(std::move(from), std::move(to));
    rule.change = std::move(change);
    rule.moves_rows = true;
    return rule;
  }
  // Of all experts, [experts, rows, ...] each: their rows as one tensor. Such rules serve only reading.
  static TensorRule join(std::vector<std::string> from, std::string to, ExpertLayout layout) {
    TensorRule rule{Kind::kJoin, std::move(from), {std::move(to)}};
    rule.layout = layout;
    return rule;
  }
  // Matrices that are stored with rows and columns exchanged; vectors are as they are.
  static TensorRule transposed(std::string from, std::vector<std::string> to);
  // What the model makes itself, or has not: a mask as a buffer of older files, the vision part of a model of text.
  static TensorRule leave_out(std::string from) { return {Kind::kLeaveOut, {std::move(from)}, {}}; }
  // What is packed in several tensors; such rules serve reading alone.
  static TensorRule decode(std::vector<std::string> from, std::string to, Decode decode) {
    return {Kind::kDecode, std::move(from), {std::move(to)}, nullptr, decode};
  }

  Kind kind;
  std::vector<std::string> from, to;
  Change change = nullptr;
  Decode decoder = {};
  bool moves_rows = false;
  Change undo = nullptr;  // of a change of the shape: what saving does
  ExpertLayout layout = {};
};
using TensorRules = std::vector<TensorRule>;

// A name of the model as the rename rules have it on their other side; as it is where none fits.
std::string name_before(const TensorRules& rules, const std::string& name);

// A name of the model as the split rules have it on their other side, and which part of that tensor it is.
struct WholeName {
  std::string name;
  size_t part = 0;
  TensorRule::Change moves = nullptr;  // of the rows of that tensor, before it is split; null: none
};
WholeName whole_name(const TensorRules& rules, const std::string& name);

// The checkpoint in the model's terms. `model` gives the widths of split tensors. Error where a stack has gaps or two
// tensors become one.
std::unique_ptr<const Checkpoint> in_model_terms(std::unique_ptr<const Checkpoint> checkpoint, const TensorRules& rules,
                                                 Module& model);

// What `change` made of the rows, undone: it is applied to their indices, which say where each came from.
at::Tensor rows_before(const TensorRule::Change& change, const at::Tensor& rows);

// The model's tensors in the checkpoint's terms, for saving.
TensorMap in_checkpoint_terms(const TensorMap& model, const TensorRules& rules);

}  // namespace hotswap
