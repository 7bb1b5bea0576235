// What every layer of one forward needs to know, made once at the model's entrance.
#pragma once

#include "hotswap/layers/attention.h"
#include "hotswap/layers/rotary.h"
#include "hotswap/layers/step_batch.h"

namespace hotswap {

struct ForwardContext {
  RotaryTables rope;
  RotaryTables sliding_rope = {};  // of sliding layers, where they have their own
  AttentionMetadata attention;
  Tensor real = {};     // [batch, time] bool, false where one of the new tokens is padding; or undefined: none is
  Tensor seq_idx = {};  // [1, time] int32: which of the sequences packed into one row a token is of; or undefined
  StepMemory* memory = nullptr;  // of the tokens before; null: none, and nothing is kept
  // Of a step of one token a row, on the device: [1] int64, the same for all rows, or [batch]. Else undefined.
  Tensor position = {};
  std::vector<Tensor>* router_logits = nullptr;  // where mixtures of experts leave theirs, in order; null: nowhere

  const RotaryTables& rope_of(bool slides) const { return slides && sliding_rope.cos.defined() ? sliding_rope : rope; }
};

}  // namespace hotswap
