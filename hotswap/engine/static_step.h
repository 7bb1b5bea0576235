// A step of static shape: one new token of each of a pool's first rows, described by tensors that stay where they are,
// so that a CUDA graph can run it again and again. Rows that have no token in a step are computed as well; what they
// write is where nothing is kept yet, and is overwritten by the token that comes there.
#pragma once

#include <compare>
#include <optional>
#include <vector>

#include "hotswap/engine/replayed_step.h"

namespace hotswap {

class StaticStep : public ReplayedStep {
 public:
  struct Shape {
    int64_t rows;          // the pool's first ones
    int64_t keys;          // of each that kernels read
    int64_t adapter = -1;  // of all rows
    auto operator<=>(const Shape&) const = default;
  };
  // The smallest of few shapes that serves a step of these rows, which have one adapter or none; none where the pool
  // has pages, a row has more than one
  // new token or none before it, or a sequence that is not in the step has a recurrent state, which would move on.
  // `whole`: the shape of all rows and keys that the pool has room for, or none.
  static std::optional<Shape> shape_for(const KvPool& pool, const std::vector<StepRow>& rows, bool whole = false);

  StaticStep(KvPool& pool, Shape shape);
  void set(const std::vector<StepRow>& rows, const Tensor& drawn = {}) override;
  const StepBatch& batch() const override { return batch_; }
  void commit() override;
  Tensor of_rows(const Tensor& logits) const override;

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;

 private:
  KvPool& pool_;
  Shape shape_;
  StepBatch batch_;
  Tensor inputs_;             // [2, rows] int64: ids and positions
  std::vector<StepRow> set_;  // by row of the pool
};

}  // namespace hotswap
