// The arguments of a training run, by transformers' names and with its defaults (5.17).
//
//   TrainingArguments arguments{.max_steps = 100, .learning_rate = 1e-4};
//   const auto same = training_arguments_from(Json::read("arguments.json"));   // as TrainingArguments.to_json_string
//
// Every name that transformers has is either honoured, or one that changes nothing in a run here, or refused by name
// unless it has its default: `hotswap train --help` lists all with the reasons.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

struct TrainingArguments {
  std::string output_dir = {};              // of checkpoints and trainer_state.json; empty: nothing is written
  int64_t per_device_train_batch_size = 8;  // examples in one forward
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;  // forwards for one update; the loss is the mean over the labels of them all
  double num_train_epochs = 3;
  int64_t max_steps = -1;  // updates; above 0: instead of num_train_epochs
  double learning_rate = 5e-5;
  double weight_decay = 0;  // of all parameters but biases and the weights of norms
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1;                  // 0: no clipping
  std::string lr_scheduler_type = "linear";  // schedules/schedule.h has the others
  nlohmann::ordered_json lr_scheduler_kwargs = nullptr;
  double warmup_steps = 0;                         // from 0 to learning_rate; below 1: a share of all updates
  std::string train_sampling_strategy = "random";  // again in each epoch, by the seed; or "sequential"
  bool dataloader_drop_last = false;               // the last batch of an epoch, where it is short
  int64_t seed = 42;
  std::optional<int64_t> data_seed = std::nullopt;  // of the order; unset: seed

  bool bf16 = false;  // a model in bfloat16; products are not cast on the way
  bool use_cpu = false;
  bool gradient_checkpointing = false;                             // CausalLM::gradient_checkpointing_enable()
  nlohmann::ordered_json gradient_checkpointing_kwargs = nullptr;  // every_n_layers, offload
  bool use_liger_kernel = false;                                   // models/liger.h
  std::map<std::string, bool> liger_kernel_config = {};
  // Not transformers' name: parameter, as Trainer's, float32_master, bfloat16_moments or stochastic
  // (optimizers/optimizer.h).
  std::string optimizer_states = "parameter";

  // Of several ranks (torchrun):
  int64_t ddp_timeout = 1800;                 // seconds in which a rank that is silent counts as lost
  bool average_tokens_across_devices = true;  // the mean over the labels of all ranks, not the mean of their means
  std::optional<bool> ddp_find_unused_parameters = std::nullopt;  // unset: all that is trained gets a gradient
  std::optional<int64_t> ddp_bucket_cap_mb = std::nullopt;        // of gradients that are reduced at once; unset: 25
  // Not transformers' name but DeepSpeed's and accelerate's: 1 shares AdamW's states out among the ranks.
  int64_t zero_stage = 0;

  std::string logging_strategy = "steps";  // no, steps, epoch
  double logging_steps = 500;              // below 1, as eval_steps and save_steps: a share of all updates
  bool logging_first_step = false;
  std::string include_num_input_tokens_seen = "no";  // no, all, non_padding
  std::optional<bool> disable_tqdm = std::nullopt;

  std::string eval_strategy = "no";                 // no, steps, epoch
  std::optional<double> eval_steps = std::nullopt;  // unset: logging_steps
  double eval_delay = 0;                            // no evaluation before this step, or epoch
  bool eval_on_start = false;

  std::string save_strategy = "steps";  // no, steps, epoch, best
  double save_steps = 500;
  std::optional<int64_t> save_total_limit = std::nullopt;
  bool save_only_model = false;  // checkpoints without what a resumed run needs
  bool load_best_model_at_end = false;
  std::optional<std::string> metric_for_best_model = std::nullopt;  // "loss" where the best model is loaded
  std::optional<bool> greater_is_better = std::nullopt;             // unset: where the metric is no loss

  // A checkpoint's folder, or "true": the last whole one of output_dir. Empty: a new run.
  std::string resume_from_checkpoint = {};
  bool ignore_data_skip = false;  // a resumed run starts the present epoch's data again
};

// Over `base`. Error for a name that transformers has not, with the nearest one, and for a value that is not honoured.
// A part of the arguments, to which others are added, is not checked: check() is to be called on the whole.
enum class ArgumentsAre { kWhole, kPart };
TrainingArguments training_arguments_from(const Json& json, TrainingArguments base = {},
                                          ArgumentsAre are = ArgumentsAre::kWhole);
// With every name of transformers': what is not honoured has its default.
nlohmann::ordered_json to_json(const TrainingArguments& arguments);
// What one argument contradicts in another, or is out of range: Error.
void check(const TrainingArguments& arguments);

}  // namespace hotswap
