// For tests of steps of static shape: prompts of one length that have run.
#pragma once

#include <c10/core/InferenceMode.h>

#include "hotswap/engine/step_runner.h"

namespace hotswap::test_support {

struct RanPrompts {
  KvPool pool;
  Tensor logits;  // of the last tokens, [batch, vocab]
};

// ids: [batch, time]; max_tokens: of one sequence
inline RanPrompts ran_prompts(CausalLM& model, const Tensor& ids, int64_t max_tokens) {
  const c10::InferenceMode inference;
  RanPrompts ran{KvPool(model.device(), {.max_sequences = ids.size(0), .max_tokens = max_tokens}), {}};
  std::vector<StepRow> rows;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const Tensor own = ids[row].contiguous();
    const auto* first = own.const_data_ptr<int64_t>();
    rows.push_back({.sequence = ran.pool.acquire(), .tokens = {first, first + own.numel()}});
  }
  ran.logits = StepRunner(model, ran.pool).run(std::move(rows));
  return ran;
}

}  // namespace hotswap::test_support
