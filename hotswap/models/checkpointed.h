// Activation checkpointing: of a layer only its input is kept, and backward runs its forward again. The memory of a
// step's activations becomes that of one layer and an input a layer, for a third more arithmetic.
#pragma once

#include "hotswap/models/block.h"

namespace hotswap {

// transformers' gradient_checkpointing_enable().
struct GradientCheckpointing {
  int64_t every_n_layers = 1;  // layers 0, n, 2n, ... are checkpointed, the others keep their activations
  bool offload = false;        // inputs are kept in pinned host memory; nothing else on a CPU
};

// block.forward(in, context), checkpointed. The result, gradients, draws of dropout and router logits have the bits of
// that forward. The block and what it holds must outlive the graph. A gradient of the gradient is an Error.
HiddenState checkpointed(Block& block, const HiddenState& in, const ForwardContext& context, bool offload);

}  // namespace hotswap
