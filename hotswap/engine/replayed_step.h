// A step whose tensors stay where they are, so that a CUDA graph can run it again with other tokens.
#pragma once

#include <vector>

#include "hotswap/engine/kv_pool.h"

namespace hotswap {

class ReplayedStep : public StepMemory {
 public:
  // Which tokens the next run is of; drawn: as KvStep's. The tensors of batch() stay in their memory.
  virtual void set(const std::vector<StepRow>& rows, const Tensor& drawn) = 0;
  virtual const StepBatch& batch() const = 0;
  virtual void commit() = 0;  // after the run, as KvStep's
  // Of the run's logits those of the rows that were set: [rows, vocab], by row of the pool. May be a view: the next run
  // writes over it.
  virtual Tensor of_rows(const Tensor& logits) const = 0;
};

}  // namespace hotswap
