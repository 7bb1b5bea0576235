// Runs a step of sequences through a model. Rows that differ in form go through the model one after another: those with
// one new token in one forward, and those with equally many new tokens at the same beginning; a chunk of a prompt is a
// forward of its own. Weights are then read again, and each form keeps the kernels and the bits of a batch of its own.
#pragma once

#include <vector>

#include "hotswap/engine/kv_pool.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

class StepRunner {
 public:
  StepRunner(CausalLM& model, KvPool& pool) : model_(model), pool_(pool) {}
  // The tokens of all rows are in the pool afterwards. -> logits after each row's last token, [rows, vocab]
  Tensor run(std::vector<StepRow> rows);

 private:
  CausalLM& model_;
  KvPool& pool_;
};

}  // namespace hotswap
