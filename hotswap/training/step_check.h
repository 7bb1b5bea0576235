// A step with kernels and without. For sources of this room.
#pragma once

#include <functional>

#include "hotswap/training/trainer_parts.h"

namespace hotswap {

// Runs `forward_backward`, which adds to gradients and returns the loss, with the model's kernels, and again with stock
// layers and the same draws of dropout. Afterwards the model has its kernels, gradients and draws of the first run.
// Error where the model is not kernelized.
StepCheck check_step(CausalLM& model, const std::function<Tensor()>& forward_backward);

}  // namespace hotswap
