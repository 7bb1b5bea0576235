#include "hotswap/engine/step_runner.h"

#include <ATen/ops/cat.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "hotswap/base/log.h"
#include "hotswap/engine/capture.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

Tensor last_logits(CausalLM& model, const StepBatch& batch, StepMemory& memory) {
  return model({.step = &batch, .memory = &memory, .logits_to_keep = 1, .row_adapters = batch.row_adapters})
      .logits.select(1, 0);  // [batch, vocab]
}

// As many as fit a ragged step.
std::vector<std::vector<int64_t>> ragged_groups(const std::vector<int64_t>& members, const std::vector<StepRow>& rows) {
  std::vector<std::vector<int64_t>> groups;
  int64_t tokens = RaggedStep::kMaxTokens;  // of the last group
  for (const int64_t i : members) {
    const auto count = static_cast<int64_t>(rows[i].tokens.size());
    const bool fits = !groups.empty() && tokens + count <= RaggedStep::kMaxTokens &&
                      static_cast<int64_t>(groups.back().size()) < RaggedStep::kMaxPrompts;
    if (!fits) groups.emplace_back();
    tokens = fits ? tokens + count : count;
    groups.back().push_back(i);
  }
  return groups;
}

// Neighbours: where a row between them is left out, layers see scattered rows and may run other kernels.
std::vector<std::vector<int64_t>> split_at_gaps(const std::vector<int64_t>& members, int64_t max_rows,
                                                const std::function<int64_t(int64_t)>& pool_row) {
  std::vector<std::vector<int64_t>> groups;
  for (const int64_t i : members) {
    const bool joins = !groups.empty() && static_cast<int64_t>(groups.back().size()) < max_rows &&
                       pool_row(groups.back().back()) + 1 == pool_row(i);
    if (!joins) groups.emplace_back();
    groups.back().push_back(i);
  }
  return groups;
}

}  // namespace

StepRunner::StepRunner(CausalLM& model, KvPool& pool, ForwardGroups groups, bool capture)
    : model_(model), pool_(pool), groups_(groups) {
  if (!pool.one_page_each()) why_not_ = "the pool has pages";
  if (!capture) why_not_ = "not requested";
  if (auto why = why_not_capturable(model)) why_not_ = std::move(*why);
  // Texts that must not depend on their company have a forward for each prompt.
  takes_ragged_ = why_not_.empty() && !groups.single_prompts && !groups.whole_steps && RaggedStep::serves(model);
}

bool StepRunner::takes_ragged(const StepRow& row) const {
  return takes_ragged_ && pool_.is_of_prompt(row) && RaggedStep::serves(pool_, row);
}

int64_t StepRunner::company_of(int64_t adapter) const {
  return pool_.device().is_cpu() ? std::min<int64_t>(adapter + 1, 1) : adapter + 1;
}

int64_t StepRunner::captured_shapes() const {
  return std::count_if(captured_.begin(), captured_.end(), [](const auto& entry) { return entry.second.recorded; });
}

std::vector<StepRunner::Forward> StepRunner::forwards_of(const std::vector<StepRow>& rows) const {
  using Form = std::tuple<size_t, bool, int64_t>;  // new tokens, whether they are first ones, company
  std::map<Form, std::vector<int64_t>> forms;
  std::vector<int64_t> ragged;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (takes_ragged(rows[i])) {
      ragged.push_back(static_cast<int64_t>(i));
      continue;
    }
    const Form form{rows[i].tokens.size(), pool_.length(rows[i].sequence) == 0, company_of(rows[i].adapter)};
    forms[form].push_back(static_cast<int64_t>(i));
  }
  const auto pool_row = [&](int64_t i) { return pool_.row(rows[i].sequence); };
  const auto by_pool_row = [&](int64_t a, int64_t b) { return pool_row(a) < pool_row(b); };
  std::vector<Forward> forwards;
  for (auto& [form, members] : forms) {
    std::sort(members.begin(), members.end(), by_pool_row);
    const bool decodes = std::get<0>(form) == 1 && !std::get<1>(form);
    const int64_t max_rows = decodes ? groups_.decode_rows : groups_.single_prompts ? 1 : 0;
    if (max_rows == 0) {
      forwards.push_back({std::move(members)});
    } else {
      for (auto& group : split_at_gaps(members, max_rows, pool_row)) forwards.push_back({std::move(group)});
    }
  }
  std::sort(ragged.begin(), ragged.end(), by_pool_row);
  for (auto& group : ragged_groups(ragged, rows)) forwards.push_back({std::move(group), /*is_ragged=*/true});
  return forwards;
}

Tensor StepRunner::run(std::vector<StepRow> rows, const Tensor& drawn) {
  const c10::InferenceMode inference;
  const c10::DeviceGuard current(pool_.device());
  std::vector<Tensor> logits;
  std::vector<int64_t> index(rows.size());  // of each row in the logits of all forms
  int64_t done = 0;
  const std::vector<Forward> forwards = forwards_of(rows);
  for (const auto& [members, is_ragged] : forwards) {
    std::vector<StepRow> group;
    for (const int64_t i : members) {
      index[i] = done++;
      group.push_back(std::move(rows[i]));
    }
    logits.push_back(run_forward(std::move(group), is_ragged, drawn));
    // Two forwards may be of one captured shape: the later one writes where the logits of the one before it are.
    if (forwards.size() > 1 && !captured_.empty()) logits.back() = logits.back().clone();
  }
  const Tensor all = logits.size() == 1 ? logits.front() : at::cat(logits, 0);
  bool in_order = true;
  for (size_t i = 0; i < index.size(); ++i) in_order = in_order && index[i] == static_cast<int64_t>(i);
  return in_order ? all : all.index_select(0, to_device(index, at::kLong, all.device()));
}

// Rows of one forward, by row of the pool. -> [rows, vocab]
Tensor StepRunner::run_forward(std::vector<StepRow> rows, bool is_ragged, const Tensor& drawn) {
  std::optional<Shape> shape;
  if (is_ragged) {
    shape = RaggedStep::shape_for(rows);
  } else if (const auto decode = StaticStep::shape_for(pool_, rows, groups_.whole_steps)) {
    shape = *decode;
  }
  Tensor captured = run_captured(rows, shape, drawn);
  if (groups_.whole_steps) require_whole(rows, captured);
  if (captured.defined()) return captured;
  KvStep step(pool_, std::move(rows), drawn, /*exact_rows=*/groups_.decode_rows > 0);
  Tensor logits = last_logits(model_, step.batch(), step);
  step.commit();
  return logits;
}

// Prompts have forwards of their own; what decodes has run as a whole step, or has no bits to rely on.
void StepRunner::require_whole(const std::vector<StepRow>& rows, const Tensor& logits) const {
  const auto of_prompt = [&](const StepRow& row) { return pool_.is_of_prompt(row); };
  if (logits.defined() || std::any_of(rows.begin(), rows.end(), of_prompt)) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted =
                   "steps that are captured, with room for all tokens of all rows, where texts must not depend on "
                   "their company",
               .got = why_not_.empty() ? cat("room for ", pool_.page_tokens(), " tokens of a row") : why_not_,
               .next = "serve without --exact, or on the CPU"});
}

// Undefined: nothing has run. A shape's first step runs as it will be captured, and its second one captures it.
Tensor StepRunner::run_captured(const std::vector<StepRow>& rows, const std::optional<Shape>& shape,
                                const Tensor& drawn) {
  if (!shape) return {};
  const auto* ragged = std::get_if<RaggedStep::Shape>(&*shape);
  std::string& why_not = ragged != nullptr ? why_not_ragged_ : why_not_;
  if (ragged == nullptr && !why_not.empty()) return {};
  if (room_ != pool_.page_tokens()) captured_.clear();
  room_ = pool_.page_tokens();
  Captured& c = captured_[*shape];
  const bool is_first = !c.step;
  if (is_first) {
    if (ragged != nullptr) {
      c.step = std::make_unique<RaggedStep>(pool_, *ragged);
    } else {
      c.step = std::make_unique<StaticStep>(pool_, std::get<StaticStep::Shape>(*shape));
    }
    c.graph = std::move(*make_cuda_graph(pool_.device()));
  }
  if (!is_first && !c.recorded && why_not.empty()) why_not = record(c);
  if (ragged == nullptr && !why_not.empty()) return {};  // rows of a ragged step have no other forward
  c.step->set(rows, drawn);
  if (c.recorded) {
    c.graph->replay();
    ++replays_;
  } else {
    c.graph->warm_up([&] { run_as_captured(c); });
  }
  ragged_steps_ += ragged != nullptr ? 1 : 0;
  c.step->commit();
  return c.step->of_rows(c.logits);
}

void StepRunner::run_as_captured(Captured& c) { c.logits = last_logits(model_, c.step->batch(), *c.step); }

// -> why it was not captured, "" where it was
std::string StepRunner::record(Captured& c) {
  try {
    c.graph->capture([&] { run_as_captured(c); });
    c.recorded = true;
  } catch (const c10::Error& error) {
    const std::string why = cat("a layer waits for the host in the middle of a step: ", error.what_without_backtrace());
    log_warning(c.step->batch().is_ragged ? "prompts" : "decode steps", " are not captured in a CUDA graph: ", why);
    return why;
  }
  return "";
}

}  // namespace hotswap
