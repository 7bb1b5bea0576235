// A small training loop: forward, backward, clipped AdamW update, one report a step.
//
//   model->train();
//   auto result = finetune(model->parameters(), [&](const Tensor& ids) {
//     return (*model)({.input_ids = ids, .labels = ids}).loss;
//   }, batches, {.optimizer = {.learning_rate = 1e-4}}, [](const StepReport& r) { std::cout << r.loss << '\n'; });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "hotswap/training/optimizer.h"
#include "hotswap/training/schedule.h"

namespace hotswap {

struct FinetuneArguments {
  AdamWOptions optimizer = {};
  Schedule schedule = Schedule::kConstant;
  int64_t warmup_steps = 0;
  double max_grad_norm = 1.0;  // 0: no clipping
};

struct StepReport {
  int64_t step = 0;          // from 0
  double loss = 0;           // before this step's update
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double seconds = 0;  // of this step, all of it
  int64_t tokens = 0;  // ids in the batch
};

struct FinetuneResult {
  std::vector<StepReport> steps;
  int64_t peak_memory = 0;  // bytes; of the loop alone where the system can tell (base/memory.h), else of the process
  bool peak_is_of_loop = false;
  // The first step also allocates the optimizer's state: it is left out when there are others.
  double tokens_per_second() const;
};

using LossFunction = std::function<Tensor(const Tensor& ids)>;  // ids: [rows, columns] -> scalar that requires grad
using StepCallback = std::function<void(const StepReport&)>;

// One step a batch, in order. Error when a loss or a gradient norm is not finite.
FinetuneResult finetune(std::vector<Tensor> parameters, const LossFunction& loss, const std::vector<Tensor>& batches,
                        const FinetuneArguments& arguments, const StepCallback& callback = nullptr);

// Mean of the loss over batches, without gradients.
double evaluate(const LossFunction& loss, const std::vector<Tensor>& batches);

}  // namespace hotswap
