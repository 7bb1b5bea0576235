// Trains a model on a dataset, in the words of transformers' Trainer and with its defaults: the same order of examples,
// the same rates, the same means, and so the same curve.
//
//   const auto dataset = std::make_shared<PackedDataset>(ids, /*example_length=*/256);
//   Trainer trainer(model, {.max_steps = 100, .learning_rate = 1e-4}, dataset);
//   const TrainOutput out = trainer.train();
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "hotswap/models/causal_lm.h"
#include "hotswap/training/arguments/training_arguments.h"
#include "hotswap/training/trainer_parts.h"

namespace hotswap {

class OptimizerShards;  // training/optimizer_shards.h

// In a process that torchrun started (RANK, WORLD_SIZE, ... are set) the constructor joins the other ranks: each trains
// on its share of the batches, the first one logs and writes.
class Trainer {
 public:
  Trainer(std::shared_ptr<CausalLM> model, TrainingArguments arguments, std::shared_ptr<const Dataset> train_dataset,
          TrainerParts parts = {});

  // The model is left in training mode. Error when a loss or a gradient is not finite; the weights are then those of
  // the last update with finite ones.
  // resume_from_checkpoint: see TrainingArguments, whose value counts where this one is empty. The run goes on from the
  // exact example, and on a CPU to the bit as one that was never interrupted. Error where the checkpoint is not whole,
  // of another model, optimizer or data.
  TrainOutput train(const std::string& resume_from_checkpoint = {});
  // Of the eval_dataset, without gradients, in evaluation mode; the mode is as before again. Goes into the log, too.
  EvalMetrics evaluate();
  // As Trainer.save_model and Trainer.save_state: into the folder, or output_dir. Only the first of several ranks
  // writes.
  void save_model(const std::filesystem::path& folder = {});
  void save_state(const std::filesystem::path& folder = {});

  bool is_world_process_zero() const;  // the first rank, or the only process
  const TrainerState& state() const { return state_; }
  // The model's, and once train() was called the row of the optimizer's update, which runs by the model's choice of
  // kernels.
  KernelReport kernel_report() const;
  const TrainingArguments& arguments() const { return arguments_; }

 private:
  void join_ranks();
  void share_optimizer();
  std::filesystem::path resume_from(const std::string& named) const;
  void watched(const std::function<void()>& work);
  std::filesystem::path folder_or_output(const std::filesystem::path& folder) const;

  std::shared_ptr<CausalLM> model_;
  TrainingArguments arguments_;
  std::shared_ptr<const Dataset> train_dataset_;
  TrainerParts parts_;
  std::shared_ptr<OptimizerShards> shards_;  // null without zero_stage, and of one process
  TrainerState state_;
  TrainerControl control_;
  KernelReport update_report_;
};

// AdamW over the parameters of a model that require gradients, with the weight decay where transformers has it.
std::shared_ptr<AdamW> make_optimizer(CausalLM& model, const TrainingArguments& arguments);

}  // namespace hotswap
