// What a training step will take of memory, before the first one.
//
//   const MemoryEstimate estimate = estimate_memory(*model, *optimizer, {.rows = 8, .length = 1024});
//   estimate.total()   // bytes
//
// Weights, gradients and the optimizer's states are counted. What a forward keeps for its backward is measured on short
// rows, of three lengths, and is the polynomial of degree two through them: it holds for every family, kernel and
// adapter. In passing is what the loss holds for a moment: the logits of a chunk, or the gradient of all logits. On a
// GPU cuBLAS has workspaces.
#pragma once

#include <optional>
#include <string>

#include "hotswap/models/causal_lm.h"
#include "hotswap/training/optimizers/optimizer.h"

namespace hotswap {

struct StepShape {
  int64_t rows, length;  // of a forward
  int64_t forwards = 1;  // of an update (gradient_accumulation_steps)
};

struct MemoryEstimate {
  int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, head = 0, libraries = 0;  // bytes
  bool gradients_stay = false;  // beside the activations: of forwards before, in the same update
  // The maximum of what is there at once. Gradients are freed after each update.
  int64_t total() const;
  std::string str() const;  // in GB
};

// These three of the model as it is.
int64_t weight_bytes(CausalLM& model);
int64_t gradient_bytes(const AdamW& optimizer);
int64_t optimizer_bytes(const AdamW& optimizer);  // after its first step

// cuBLAS's workspaces on a GPU of that compute capability, 90 for 9.0; of none, a CPU's, 0.
int64_t library_bytes(std::optional<int64_t> capability);

// Runs three short forwards. The model is in training mode; generators are afterwards as before.
MemoryEstimate estimate_memory(CausalLM& model, const AdamW& optimizer, const StepShape& shape);

}  // namespace hotswap
