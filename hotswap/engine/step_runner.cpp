#include "hotswap/engine/step_runner.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <utility>

namespace hotswap {

Tensor StepRunner::run(std::vector<StepRow> rows) {
  const c10::InferenceMode inference;
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
    KvStep step(pool_, std::move(group));
    logits.push_back(
        model_({.step = &step.batch(), .memory = &step, .logits_to_keep = 1}).logits.select(1, 0));  // [members, vocab]
    step.commit();
  }
  const Tensor all = logits.size() == 1 ? logits.front() : at::cat(logits, 0);
  bool in_order = true;
  for (size_t i = 0; i < index.size(); ++i) in_order = in_order && index[i] == static_cast<int64_t>(i);
  return in_order ? all : all.index_select(0, at::tensor(index, at::kLong).to(all.device()));
}

}  // namespace hotswap
