// Trains a model on a dataset, in the words of transformers' Trainer and with its defaults.
//
//   const auto dataset = std::make_shared<PackedDataset>(ids, /*example_length=*/256);
//   Trainer trainer(model, {.max_steps = 100, .learning_rate = 1e-4}, dataset);
//   const TrainOutput out = trainer.train();
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"
#include "hotswap/training/dataset.h"
#include "hotswap/training/optimizer.h"

namespace hotswap {

struct TrainingArguments {
  int64_t per_device_train_batch_size = 8;  // examples in one forward
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;  // forwards for one update; the loss is the mean over the labels of them all
  double num_train_epochs = 3;
  int64_t max_steps = -1;  // updates; above 0: instead of num_train_epochs
  double learning_rate = 5e-5;
  double weight_decay = 0;  // of all parameters but biases and the weights of norms
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1;                        // 0: no clipping
  std::string lr_scheduler_type = "linear";        // schedule.h has the others
  int64_t warmup_steps = 0;                        // from 0 to learning_rate
  std::string train_sampling_strategy = "random";  // anew each epoch, by the seed; or "sequential"
  uint64_t seed = 42;
};

// One update.
struct TrainingStep {
  int64_t step = 0;      // from 0
  double loss = 0;       // before this update
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double seconds = 0;            // all of it: batches, forwards, backwards, update
  int64_t num_input_tokens = 0;  // ids in its batches
};

struct TrainOutput {
  std::vector<TrainingStep> steps;
  double training_loss = 0;  // mean over the steps
  int64_t peak_memory = 0;   // bytes; of the loop alone where the system can tell (base/memory.h), else of the process
  bool peak_is_of_loop = false;
  // The first step also allocates the optimizer's state: it is left out when there are others.
  double train_tokens_per_second() const;
};

// Parts that a Trainer makes by itself where none is given.
struct TrainerParts {
  std::shared_ptr<const Dataset> eval_dataset = nullptr;
  std::shared_ptr<AdamW> optimizer = nullptr;  // it brings its own betas and weight decay; the schedule sets its rate
  std::function<void(const TrainingStep&)> on_step_end = nullptr;
};

class Trainer {
 public:
  Trainer(std::shared_ptr<CausalLM> model, TrainingArguments arguments, std::shared_ptr<const Dataset> train_dataset,
          TrainerParts parts = {});

  // The model is left in training mode. Error when a loss or a gradient is not finite.
  TrainOutput train();
  // Mean loss over the labels of the eval_dataset, without gradients, in evaluation mode; the mode is as before again.
  double evaluate();

 private:
  std::vector<TrainingBatch> next_batches(class ExampleSampler& sampler) const;
  double forward_backward(const std::vector<TrainingBatch>& batches);
  int64_t update_count() const;

  std::shared_ptr<CausalLM> model_;
  TrainingArguments arguments_;
  std::shared_ptr<const Dataset> train_dataset_;
  TrainerParts parts_;
};

// AdamW over the parameters of a model that require gradients, with the weight decay where transformers has it.
std::shared_ptr<AdamW> make_optimizer(CausalLM& model, const TrainingArguments& arguments);

}  // namespace hotswap
