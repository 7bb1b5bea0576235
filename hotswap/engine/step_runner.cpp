#include "hotswap/engine/step_runner.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "hotswap/base/log.h"
#include "hotswap/engine/capture.h"

namespace hotswap {
namespace {

Tensor last_logits(CausalLM& model, const StepBatch& batch, StepMemory& memory) {
  return model({.step = &batch, .memory = &memory, .logits_to_keep = 1}).logits.select(1, 0);  // [batch, vocab]
}

}  // namespace

StepRunner::StepRunner(CausalLM& model, KvPool& pool) : model_(model), pool_(pool) {
  if (!pool.one_page_each()) why_not_ = "the pool has pages";
  if (auto why = why_not_capturable(model)) why_not_ = std::move(*why);
}

int64_t StepRunner::captured_shapes() const {
  return std::count_if(captured_.begin(), captured_.end(), [](const auto& entry) { return entry.second.recorded; });
}

Tensor StepRunner::run(std::vector<StepRow> rows) {
  const c10::InferenceMode inference;
  const c10::DeviceGuard current(pool_.device());
  std::map<std::pair<size_t, bool>, std::vector<int64_t>> forms;  // (new tokens, first ones) -> rows
  for (size_t i = 0; i < rows.size(); ++i) {
    forms[{rows[i].tokens.size(), pool_.length(rows[i].sequence) == 0}].push_back(static_cast<int64_t>(i));
  }
  std::vector<Tensor> logits;
  std::vector<int64_t> index(rows.size());  // of each row in the logits of all forms
  int64_t done = 0;
  for (auto& [form, members] : forms) {
    std::sort(members.begin(), members.end(),
              [&](int64_t a, int64_t b) { return pool_.row(rows[a].sequence) < pool_.row(rows[b].sequence); });
    std::vector<StepRow> group;
    for (const int64_t i : members) {
      index[i] = done++;
      group.push_back(std::move(rows[i]));
    }
    logits.push_back(run_alike(std::move(group)));
  }
  const Tensor all = logits.size() == 1 ? logits.front() : at::cat(logits, 0);
  bool in_order = true;
  for (size_t i = 0; i < index.size(); ++i) in_order = in_order && index[i] == static_cast<int64_t>(i);
  return in_order ? all : all.index_select(0, at::tensor(index, at::kLong).to(all.device()));
}

// Rows of one form, by row of the pool. -> [rows, vocab]
Tensor StepRunner::run_alike(std::vector<StepRow> rows) {
  if (Tensor logits = run_captured(rows); logits.defined()) return logits;
  KvStep step(pool_, std::move(rows));
  Tensor logits = last_logits(model_, step.batch(), step);
  step.commit();
  return logits;
}

// Undefined: nothing has run. A shape's first step runs as it will be captured, and its second one captures it.
Tensor StepRunner::run_captured(const std::vector<StepRow>& rows) {
  if (!why_not_.empty()) return {};
  const auto shape = StaticStep::shape_for(pool_, rows);
  if (!shape) return {};
  if (room_ != pool_.page_tokens()) captured_.clear();
  room_ = pool_.page_tokens();
  Captured& c = captured_[*shape];
  if (!c.step) {
    c.step = std::make_unique<StaticStep>(pool_, *shape);
    c.step->set(rows);
    c.graph = std::move(*make_cuda_graph(pool_.device()));
    c.graph->warm_up([&] { c.logits = last_logits(model_, c.step->batch(), *c.step); });
  } else {
    if (!c.recorded) record(c);
    if (!why_not_.empty()) return {};
    c.step->set(rows);
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
