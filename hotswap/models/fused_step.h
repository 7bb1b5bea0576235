// Where one kernel makes all that a step begins with. A family makes the object for its models (family.h); the engine
// asks it before each step whose rows are all at one position.
#pragma once

#include "hotswap/layers/step_batch.h"

namespace hotswap {

class FusedStep {
 public:
  virtual ~FusedStep() = default;
  // Of a step of one token a row, each at `position`, [1] int64: sets inputs_embeds, rope and positions of the batch,
  // and moves `position` on by one. false: no kernel does this, and nothing has happened.
  virtual bool begin(StepBatch& step, const Tensor& position) const = 0;
};

}  // namespace hotswap
