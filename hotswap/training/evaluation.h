// The loss of a model on a dataset. For sources of this room.
#pragma once

#include "hotswap/training/trainer_parts.h"

namespace hotswap {

// Without gradients, in evaluation mode; the mode is as before again. Error where no batch has a label. Each of several
// ranks evaluates its share of the batches, and all have the metrics of the whole.
EvalMetrics evaluate_model(CausalLM& model, const Dataset& dataset, int64_t batch_size, Ranks* ranks = nullptr);

// What a forward with a loss takes, on the model's device.
ForwardArguments forward_arguments(const TrainingBatch& batch, at::Device device);

// transformers' speed metrics: value, rounded as it does.
double rounded(double value, int digits);

}  // namespace hotswap
