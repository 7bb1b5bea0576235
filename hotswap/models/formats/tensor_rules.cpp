#include "hotswap/models/formats/tensor_rules.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

bool is_number(const std::string& part) {
  return !part.empty() && part.size() <= 9 && part.find_first_not_of("0123456789") == std::string::npos;
}

struct Match {
  std::vector<std::string> numbers;  // in place of each *
  std::string rest;                  // ".weight"
};

std::optional<Match> match(const std::string& pattern, const std::string& name) {
  const auto wanted = split(pattern, '.'), given = split(name, '.');
  if (wanted.size() > given.size()) return std::nullopt;
  Match found;
  for (size_t i = 0; i < given.size(); ++i) {
    if (i >= wanted.size()) {
      found.rest += "." + given[i];
    } else if (wanted[i] == "*") {
      if (!is_number(given[i])) return std::nullopt;
      found.numbers.push_back(given[i]);
    } else if (wanted[i] != given[i]) {
      return std::nullopt;
    }
  }
  return found;
}

std::string filled(const std::string& pattern, const Match& match) {
  std::string name;
  size_t number = 0;
  for (const char c : pattern) {
    if (c == '*') {
      name += match.numbers.at(number++);
    } else {
      name += c;
    }
  }
  return name + match.rest;
}

// Where one tensor of the model comes from.
struct TensorSource {
  const TensorRule* rule = nullptr;                  // null: the name stays
  std::vector<std::map<int64_t, std::string>> from;  // of each pattern of the rule, by index of a stack, else one
  int64_t begin = 0, width = 0;                      // rows of a split
  const std::string& first() const {                 // of those that are there
    for (const auto& parts : from) {
      if (!parts.empty()) return parts.begin()->second;
    }
    return from.front().at(0);
  }
};

class RuledCheckpoint : public Checkpoint {
 public:
  RuledCheckpoint(std::unique_ptr<const Checkpoint> raw, TensorRules rules, Module& model)
      : raw_(std::move(raw)), rules_(std::move(rules)) {
    model.each_tensor(
        [&](const std::string& name, Tensor& tensor) { widths_[name] = tensor.dim() == 0 ? 1 : tensor.size(0); });
    for (const std::string& name : raw_->names()) add(name);
    for (const auto& [name, source] : sources_) {
      if (source.rule != nullptr) check_parts(name, source);
    }
  }

  std::vector<std::string> names() const override { return names_; }
  bool has(const std::string& name) const override { return sources_.count(name) != 0; }
  std::vector<int64_t> shape(const std::string& name) const override {
    const TensorSource& source = source_of(name);
    if (is_kind(source, TensorRule::Kind::kDecode)) {
      std::vector<std::vector<int64_t>> shapes;
      for (const auto& parts : source.from) shapes.push_back(raw_->shape(parts.at(0)));
      return source.rule->decoder.shape(shapes);
    }
    std::vector<int64_t> shape = shape_of(source.first(), source.rule);
    if (is_kind(source, TensorRule::Kind::kJoin)) return joined_shape(shape, source.from.size(), source.rule->layout);
    if (is_stack(source)) {
      if (!shape.empty()) shape[0] *= static_cast<int64_t>(source.from.size());
      shape.insert(shape.begin(), static_cast<int64_t>(source.from.front().size()));
    }
    if (source.width > 0) shape[0] = source.width;
    return shape;
  }
  // What is decoded has numbers of no type of its own.
  at::ScalarType dtype(const std::string& name) const override {
    const TensorSource& source = source_of(name);
    return is_kind(source, TensorRule::Kind::kDecode) ? at::kBFloat16 : raw_->dtype(source.first());
  }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const override {
    const TensorSource& source = source_of(name);
    if (is_kind(source, TensorRule::Kind::kDecode)) return source.rule->decoder.tensor(parts_of(source), dtype);
    if (is_stack(source)) return stacked(source, dtype);
    if (is_kind(source, TensorRule::Kind::kJoin)) {
      return joined_rows(raw_->shape(source.first()), source.from.size(), source.rule->layout, dtype,
                    [&](size_t part) { return raw_->tensor(source.from[part].at(0), dtype); });
    }
    const bool changes = source.rule != nullptr && source.rule->change;  // numbers, perhaps: rounded afterwards
    const bool moves_only = changes && (source.rule->moves_rows || source.rule->undo);
    at::Tensor tensor = raw_->tensor(source.first(), changes && !moves_only ? at::kFloat : dtype);
    if (changes) tensor = source.rule->change(tensor);
    if (source.width > 0) tensor = tensor.narrow(0, source.begin, source.width);
    return changes ? tensor.to(dtype).contiguous() : tensor;
  }
  std::optional<Weight> encoded(const std::string& name) const override {
    const TensorSource& source = source_of(name);
    if (is_kind(source, TensorRule::Kind::kDecode)) return packed_of_decoded(source);
    if (is_kind(source, TensorRule::Kind::kJoin)) {
      return joined_packed(source.from.size(), source.rule->layout,
                           [&](size_t part) { return raw_->encoded(source.from[part].at(0)); });
    }
    if (is_stack(source)) {
      const size_t parts = source.from.size();
      return stacked_packed(source.from.front().size(), parts, [&](size_t i) {
        return raw_->encoded(source.from[i % parts].at(static_cast<int64_t>(i / parts)));
      });
    }
    const bool changes = source.rule != nullptr && source.rule->change;
    if (changes && !source.rule->moves_rows) return std::nullopt;
    const std::optional<Weight> stored = raw_->encoded(source.first());
    if (!stored) return std::nullopt;
    return stored->with_rows([&](const at::Tensor& part) {
      const at::Tensor rows = changes ? source.rule->change(part) : part;
      return source.width > 0 ? rows.narrow(0, source.begin, source.width).clone() : rows;
    });
  }
  bool is_file_memory(const std::string& name, at::ScalarType dtype) const override {
    const TensorSource& source = source_of(name);
    const bool made = is_kind(source, TensorRule::Kind::kDecode) || is_kind(source, TensorRule::Kind::kJoin);
    const bool changed = made || is_stack(source) || (source.rule != nullptr && source.rule->change);
    return !changed && raw_->is_file_memory(source.first(), dtype);
  }
  std::string where() const override { return raw_->where(); }
  const GgufFile* gguf() const override { return raw_->gguf(); }

 private:
  static bool is_kind(const TensorSource& source, TensorRule::Kind kind) {
    return source.rule != nullptr && source.rule->kind == kind;
  }
  static bool is_stack(const TensorSource& source) { return is_kind(source, TensorRule::Kind::kStack); }

  std::vector<at::Tensor> parts_of(const TensorSource& source) const {
    std::vector<at::Tensor> parts;
    for (const auto& stored : source.from) parts.push_back(raw_->tensor(stored.at(0)));
    return parts;
  }

  std::optional<Weight> packed_of_decoded(const TensorSource& source) const {
    return source.rule->decoder.packed == nullptr ? std::nullopt : source.rule->decoder.packed(parts_of(source));
  }

  std::vector<int64_t> shape_of(const std::string& stored, const TensorRule* rule) const {
    const std::vector<int64_t> shape = raw_->shape(stored);
    if (rule == nullptr || !rule->undo) return shape;
    return rule->change(at::empty(shape, at::TensorOptions().device(at::kMeta))).sizes().vec();
  }

  // Written part by part into one tensor: a mixture's weights are most of a checkpoint, and are not held twice.
  at::Tensor stacked(const TensorSource& source, at::ScalarType dtype) const {
    std::vector<int64_t> shape = raw_->shape(source.first());
    const auto count = static_cast<int64_t>(source.from.front().size());
    const auto lists = static_cast<int64_t>(source.from.size());
    std::vector<int64_t> all = {count, lists};
    all.insert(all.end(), shape.begin(), shape.end());
    at::Tensor result = at::empty(all, at::TensorOptions().dtype(dtype));  // [count, lists, ...]
    for (int64_t list = 0; list < lists; ++list) {
      for (const auto& [index, part] : source.from[list])
        result.select(0, index).select(0, list).copy_(raw_->tensor(part, dtype));
    }
    if (shape.empty()) return result.select(1, 0);
    shape[0] *= lists;
    shape.insert(shape.begin(), count);
    return result.view(shape);
  }

  // All that a rule wants is there, and of shapes that belong together.
  void check_parts(const std::string& name, const TensorSource& source) const {
    for (size_t i = 0; i < source.from.size(); ++i) {
      if (!source.from[i].empty()) continue;
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("tensors like '", source.rule->from[i], "' in ", where(), " for '", name, "'"),
                   .got = cat("none, and '", source.first(), "'"),
                   .next = "fetch the checkpoint again: it is not whole"});
    }
    if (is_stack(source)) check_stack(name, source);
    if (is_kind(source, TensorRule::Kind::kJoin)) check_join(name, source);
  }

  void check_join(const std::string& name, const TensorSource& source) const {
    const auto first = raw_->shape(source.first());
    for (const auto& part : source.from) {
      const auto shape = raw_->shape(part.at(0));
      if (shape == first && shape.size() >= 2) continue;
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("tensors of all experts of one shape in ", where(), " for '", name, "'"),
                   .got = cat("'", source.first(), "' [", join(first), "] and '", part.at(0), "' [", join(shape), "]"),
                   .next = "fetch the checkpoint again: it is damaged"});
    }
  }

  void check_stack(const std::string& name, const TensorSource& source) const {
    const auto shape = raw_->shape(source.first());
    for (const auto& parts : source.from) {
      const bool alike =
          std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return raw_->shape(part.second) == shape; });
      const int64_t last = parts.rbegin()->first;
      const bool whole = last == static_cast<int64_t>(parts.size()) - 1 && parts.size() == source.from.front().size();
      if (alike && whole && (!shape.empty() || source.from.size() == 1)) continue;
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("tensors 0, 1, ... of one shape in ", where(), ", which '", name, "' stacks"),
                   .got = alike ? cat(parts.size(), " of them, the last of which is number ", last)
                                : std::string("different shapes"),
                   .next = "fetch the checkpoint again: it is not whole"});
    }
  }

  void add(const std::string& name) {
    for (const TensorRule& rule : rules_) {
      for (size_t place = 0; place < rule.from.size(); ++place) {
        if (auto found = match(rule.from[place], name)) return add(name, rule, place, *std::move(found));
      }
    }
    put(name, {name}, {});
  }

  void add(const std::string& name, const TensorRule& rule, size_t place, Match found) {
    if (rule.kind == TensorRule::Kind::kLeaveOut) return;
    const Part part{name, place};
    if (rule.kind == TensorRule::Kind::kStack) {
      const int64_t index = std::stoll(found.numbers.back());
      found.numbers.pop_back();
      return put(filled(rule.to.front(), found), {name, place, index}, {.rule = &rule});
    }
    int64_t begin = 0;
    for (const std::string& to : rule.to) {
      const std::string target = filled(to, found);
      const int64_t width = rule.kind == TensorRule::Kind::kSplit ? width_of(target, name) : 0;
      put(target, part, {.rule = &rule, .begin = begin, .width = width});
      begin += width;
    }
    check_width(rule, name, begin);
  }

  // A stored tensor, and which place of its rule it fills.
  struct Part {
    std::string from;
    size_t place = 0;
    int64_t index = 0;
  };

  void put(const std::string& target, const Part& part, TensorSource source) {
    source.from.resize(source.rule == nullptr ? 1 : source.rule->from.size());
    const TensorRule* rule = source.rule;
    const auto [found, fresh] = sources_.emplace(target, std::move(source));
    if (fresh) names_.push_back(target);
    auto& filled = found->second;
    if (filled.rule == rule && filled.from[part.place].emplace(part.index, part.from).second) return;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("one tensor for '", target, "' in ", where()),
                 .got = cat("'", filled.first(), "' and '", part.from, "'"),
                 .next = "fetch the checkpoint again, or correct the family's tensor rules"});
  }

  int64_t width_of(const std::string& target, const std::string& from) const {
    const auto found = widths_.find(target);
    if (found != widths_.end()) return found->second;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a tensor '", target, "' in the model, a part of '", from, "'"),
                 .got = "none",
                 .next = "check that the config and the weights belong together"});
  }

  void check_width(const TensorRule& rule, const std::string& name, int64_t width) const {
    if (rule.kind != TensorRule::Kind::kSplit) return;
    const auto shape = shape_of(name, &rule);
    if (!shape.empty() && shape[0] == width) return;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat(width, " rows in '", name, "' of ", where(), ", which the model splits"),
                 .got = cat("[", join(shape), "]"),
                 .next = "check that the config and the weights belong together"});
  }

  const TensorSource& source_of(const std::string& name) const {
    const auto found = sources_.find(name);
    if (found != sources_.end()) return found->second;
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("a tensor '", name, "' in ", where()),
                 .got = "none",
                 .next = "check the name"});
  }

  std::unique_ptr<const Checkpoint> raw_;
  TensorRules rules_;
  std::map<std::string, int64_t> widths_;
  std::map<std::string, TensorSource> sources_;
  std::vector<std::string> names_;
};

// "a.*.b" and number 3 in place of the last * -> "a.3.b"
std::string with_last(Match match, int64_t index, const std::string& pattern) {
  match.numbers.push_back(std::to_string(index));
  return filled(pattern, match);
}

}  // namespace

TensorRule TensorRule::transposed(std::string from, std::vector<std::string> to) {
  TensorRule rule = split(std::move(from), std::move(to));
  if (rule.to.size() == 1) rule.kind = Kind::kRename;
  rule.change = rule.undo = [](const at::Tensor& t) { return t.dim() == 2 ? t.t().contiguous() : t; };
  return rule;
}

at::Tensor rows_before(const TensorRule::Change& change, const at::Tensor& rows) {
  const at::Tensor indices = at::arange(rows.size(0), at::TensorOptions(at::kLong)).view({-1, 1});
  const at::Tensor targets = change(indices).flatten().to(rows.device());
  return at::empty_like(rows).index_copy_(0, targets, rows);
}

std::string name_before(const TensorRules& rules, const std::string& name) {
  for (const TensorRule& rule : rules) {
    if (rule.kind != TensorRule::Kind::kRename) continue;
    if (const auto found = match(rule.to.front(), name)) return filled(rule.from.front(), *found);
  }
  return name;
}

WholeName whole_name(const TensorRules& rules, const std::string& name) {
  for (const TensorRule& rule : rules) {
    if (rule.kind != TensorRule::Kind::kSplit) continue;
    for (size_t part = 0; part < rule.to.size(); ++part) {
      if (const auto found = match(rule.to[part], name))
        return {filled(rule.from.front(), *found), part, rule.moves_rows ? rule.change : nullptr};
    }
  }
  return {name};
}

std::unique_ptr<const Checkpoint> in_model_terms(std::unique_ptr<const Checkpoint> checkpoint, const TensorRules& rules,
                                                 Module& model) {
  if (rules.empty()) return checkpoint;
  return std::make_unique<RuledCheckpoint>(std::move(checkpoint), rules, model);
}

TensorMap in_checkpoint_terms(const TensorMap& model, const TensorRules& rules) {
  std::map<std::string, at::Tensor> tensors(model.begin(), model.end());
  std::set<std::string> done;
  TensorMap result;
  const auto save_stack = [&](const TensorRule& rule, const Match& found, const at::Tensor& stacked) {
    for (int64_t i = 0; i < stacked.size(0); ++i) {
      const auto parts = stacked.select(0, i).chunk(static_cast<int64_t>(rule.from.size()));
      for (size_t j = 0; j < parts.size(); ++j) result.emplace_back(with_last(found, i, rule.from[j]), parts[j]);
    }
  };
  const auto save = [&](const std::string& name) {
    for (const TensorRule& rule : rules) {
      using Kind = TensorRule::Kind;
      if (rule.kind == Kind::kDecode || rule.kind == Kind::kJoin || rule.kind == Kind::kLeaveOut) continue;
      const auto found = match(rule.to.front(), name);
      if (!found) continue;
      if (rule.kind == TensorRule::Kind::kStack) return save_stack(rule, *found, tensors.at(name));
      std::vector<at::Tensor> parts;
      for (const std::string& to : rule.to) {
        parts.push_back(tensors.at(filled(to, *found)));
        done.insert(filled(to, *found));
      }
      const at::Tensor whole = parts.size() == 1 ? parts.front() : at::cat(parts);
      const at::Tensor stored = rule.moves_rows ? rows_before(rule.change, whole)
                                : rule.undo     ? rule.undo(whole)
                                                : whole;
      result.emplace_back(filled(rule.from.front(), *found), stored);
      return;
    }
    result.emplace_back(name, tensors.at(name));
  };
  for (const auto& [name, tensor] : model) {
    if (!done.contains(name)) save(name);
  }
  return result;
}

}  // namespace hotswap
