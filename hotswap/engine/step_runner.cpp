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
}

int64_t StepRunner::company_of(int64_t adapter) const {
  return pool_.device().is_cpu() ? std::min<int64_t>(adapter + 1, 1) : adapter + 1;
}

int64_t StepRunner::captured_shapes() const {
  return std::count_if(captured_.begin(), captured_.end(), [](const auto& entry) { return entry.second.recorded; });
}

// Indices of rows, those of each forward.
std::vector<std::vector<int64_t>> StepRunner::forwards_of(const std::vector<StepRow>& rows) const {
  using Form = std::tuple<size_t, bool, int64_t>;  // new tokens, whether they are first ones, company
  std::map<Form, std::vector<int64_t>> forms;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Form form{rows[i].tokens.size(), pool_.length(rows[i].sequence) == 0, company_of(rows[i].adapter)};
    forms[form].push_back(static_cast<int64_t>(i));
  }
  const auto pool_row = [&](int64_t i) { return pool_.row(rows[i].sequence); };
  std::vector<std::vector<int64_t>> forwards;
  for (auto& [form, members] : forms) {
    std::sort(members.begin(), members.end(), [&](int64_t a, int64_t b) { return pool_row(a) < pool_row(b); });
    const bool decodes = std::get<0>(form) == 1 && !std::get<1>(form);
    const int64_t max_rows = decodes ? groups_.decode_rows : groups_.single_prompts ? 1 : 0;
    if (max_rows == 0) {
      forwards.push_back(std::move(members));
    } else {
      for (auto& group : split_at_gaps(members, max_rows, pool_row)) forwards.push_back(std::move(group));
    }
  }
  return forwards;
}

Tensor StepRunner::run(std::vector<StepRow> rows, const Tensor& drawn) {
  const c10::InferenceMode inference;
  const c10::DeviceGuard current(pool_.device());
  std::vector<Tensor> logits;
  std::vector<int64_t> index(rows.size());  // of each row in the logits of all forms
  int64_t done = 0;
  const std::vector<std::vector<int64_t>> forwards = forwards_of(rows);
  for (const auto& members : forwards) {
    std::vector<StepRow> group;
    for (const int64_t i : members) {
      index[i] = done++;
      group.push_back(std::move(rows[i]));
    }
    logits.push_back(run_alike(std::move(group), drawn));
    // Two forwards may be of one captured shape: the later one writes where the logits of the one before it are.
    if (forwards.size() > 1 && !captured_.empty()) logits.back() = logits.back().clone();
  }
  const Tensor all = logits.size() == 1 ? logits.front() : at::cat(logits, 0);
  bool in_order = true;
  for (size_t i = 0; i < index.size(); ++i) in_order = in_order && index[i] == static_cast<int64_t>(i);
  return in_order ? all : all.index_select(0, to_device(index, at::kLong, all.device()));
}

// Rows of one form, by row of the pool. -> [rows, vocab]
Tensor StepRunner::run_alike(std::vector<StepRow> rows, const Tensor& drawn) {
  Tensor captured = run_captured(rows, drawn);
  if (groups_.whole_steps) require_whole(rows, captured);
  if (captured.defined()) return captured;
  KvStep step(pool_, std::move(rows), drawn, /*exact_rows=*/groups_.decode_rows > 0);
  Tensor logits = last_logits(model_, step.batch(), step);
  step.commit();
  return logits;
}

// Prompts have forwards of their own; what decodes has run as a whole step, or has no bits to rely on.
void StepRunner::require_whole(const std::vector<StepRow>& rows, const Tensor& logits) const {
  const auto decodes = [&](const StepRow& row) { return row.tokens.size() == 1 && pool_.length(row.sequence) > 0; };
  if (logits.defined() || !std::all_of(rows.begin(), rows.end(), decodes)) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted =
                   "steps that are captured, with room for all tokens of all rows, where texts must not depend on "
                   "their company",
               .got = why_not_.empty() ? cat("room for ", pool_.page_tokens(), " tokens of a row") : why_not_,
               .next = "serve without --exact, or on the CPU"});
}

// Undefined: nothing has run. A shape's first step runs as it will be captured, and its second one captures it.
Tensor StepRunner::run_captured(const std::vector<StepRow>& rows, const Tensor& drawn) {
  if (!why_not_.empty()) return {};
  const auto shape = StaticStep::shape_for(pool_, rows, groups_.whole_steps);
  if (!shape) return {};
  if (room_ != pool_.page_tokens()) captured_.clear();
  room_ = pool_.page_tokens();
  Captured& c = captured_[*shape];
  if (!c.step) {
    c.step = std::make_unique<StaticStep>(pool_, *shape);
    c.step->set(rows, drawn);
    c.graph = std::move(*make_cuda_graph(pool_.device()));
    c.graph->warm_up([&] { c.logits = last_logits(model_, c.step->batch(), *c.step); });
  } else {
    if (!c.recorded) record(c);
    if (!why_not_.empty()) return {};
    c.step->set(rows, drawn);
    c.graph->replay();
    ++replays_;
  }
  c.step->commit();
  return c.step->of_rows(c.logits);
}

void StepRunner::record(Captured& c) {
  try {
    c.graph->capture([&] { c.logits = last_logits(model_, c.step->batch(), *c.step); });
    c.recorded = true;
  } catch (const c10::Error& error) {
    why_not_ = cat("a layer waits for the host in the middle of a step: ", error.what_without_backtrace());
    log_warning("decode steps are not captured in a CUDA graph: ", why_not_);
  }
}

}  // namespace hotswap
