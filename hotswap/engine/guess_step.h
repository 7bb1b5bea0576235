// Several tokens of one sequence of a pool as the rows of one step: the last token that is certain and the guessed ones
// after it. Each row is as a step of one token would be, at its own position, and sees the rows before it, so that
// layers run what they run for other rows of one token. Where products of several rows have the bits of single ones,
// the logits have, too.
//
//   GuessStep step(pool, sequence, {last, guess[0], guess[1]});
//   Tensor logits = model({.step = &step.batch(), .memory = &step, .logits_to_keep = 1}).logits.select(1, 0);
//   step.commit();                                        // [rows, vocab]: what follows each of the rows
//   pool.rollback(sequence, pool.length(sequence) - 1);   // the second guess was wrong
#pragma once

#include "hotswap/engine/kv_pool.h"

namespace hotswap {

class GuessStep : public StepMemory {
 public:
  // Error where the sequence is empty, or there are no tokens.
  GuessStep(KvPool& pool, int64_t sequence, const std::vector<int64_t>& tokens);
  const StepBatch& batch() const { return batch_; }
  void commit();

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  // Error: a recurrent state goes from token to token, and not back.
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;

 private:
  void write(const Tensor& pages, const Tensor& fresh);
  KvPool& pool_;
  int64_t sequence_, past_;
  StepBatch batch_;
  Tensor page_of_, offset_of_;  // [rows] int64, where the sequence has pages; made when first needed
};

}  // namespace hotswap
