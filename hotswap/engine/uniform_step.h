// A step of static shape of all sequences of a pool, which are of one length: one new token of each. Only the device
// counts on, so that a CUDA graph of a step runs one step after another without the host.
#pragma once

#include "hotswap/engine/kv_pool.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

class UniformStep : public StepMemory {
 public:
  // capacity: tokens that a sequence ever has. Error where the pool has pages, or sequences of other lengths than 1 or
  // more, the same for all.
  UniformStep(KvPool& pool, int64_t capacity);

  // ids: [rows] int64, by row of the pool -> logits, [rows, vocab]. Error where no room is left.
  Tensor forward(CausalLM& model, const Tensor& ids);
  // Where forward() ran, also by a graph in which it was captured; before the next one. Error as of forward().
  void commit();

  int64_t length() const;     // of the sequences, as far as the host has counted
  int64_t kv_bucket() const;  // keys that the next forward() reads: a captured one serves as long as they are as many
  const Tensor& position() const { return position_; }  // [1] int64 on the device: length() once forward() has run

  std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) override;
  std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) override;
  RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) override;

 private:
  void check_room() const;
  KvPool& pool_;
  int64_t rows_, capacity_;
  Tensor position_;
  StepBatch batch_;
};

}  // namespace hotswap
