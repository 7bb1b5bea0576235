// A step of chunks of several prompts, of any lengths, as one row of tokens of static size, which a CUDA graph can run
// again: what else is launch after launch is one launch then. Rows are padded with tokens of no prompt; what they write
// is where nothing is kept yet.
//
// Layers see a step of one new token a row. Only attention knows prompts (StepBatch::is_ragged).
#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "hotswap/engine/replayed_step.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

class RaggedStep : public ReplayedStep {
 public:
  static constexpr int64_t kMaxTokens = 1024, kMaxPrompts = 16;  // of one step

  struct Shape {
    int64_t tokens;
    auto operator<=>(const Shape&) const = default;
  };
  // Whether every layer of the model attends, by kernels that take such a step.
  static bool serves(CausalLM& model);
  // Whether such a step can have this row: no adapter, and room in memory that is there already.
  static bool serves(const KvPool& pool, const StepRow& row);
  // Of rows that it serves. Their tokens and their number are at most the above.
  static Shape shape_for(const std::vector<StepRow>& rows);

  RaggedStep(KvPool& pool, Shape shape);
  void set(const std::vector<StepRow>& rows, const Tensor& drawn = {}) override;  // none is drawn
  const StepBatch& batch() const override { return batch_; }
  void commit() override;
  Tensor of_rows(const Tensor& logits) const override;

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;

 private:
  int64_t page_begin(const StepRow& row) const;
  KvPool& pool_;
  Shape shape_;
  int64_t page_rows_;  // of a page, where all pages are one row of tokens
  StepBatch batch_;
  Tensor tokens_, sequences_;  // the memory of the batch's tensors, int64 and int32
  std::vector<StepRow> set_;   // by row of the pool
};

}  // namespace hotswap
