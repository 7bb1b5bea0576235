// What goes into a Trainer beside model, arguments and data, where a run is, and what it gives back.
//
//   struct StopAtOne : TrainerCallback {
//     void on_evaluate(const TrainerEvent& event, const nlohmann::json& metrics) override {
//       if (metrics["eval_loss"] < 1) event.control.should_training_stop = true;
//     }
//   };
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/models/causal_lm.h"
#include "hotswap/training/arguments/training_arguments.h"
#include "hotswap/training/data/dataset.h"
#include "hotswap/training/optimizers/optimizer.h"

namespace hotswap {

class OutputLock;  // training/output_lock.h
class Ranks;

// A callback or the Trainer's own rules set these; the Trainer acts on them at the end of an update.
struct TrainerControl {
  bool should_training_stop = false, should_epoch_stop = false;
  bool should_save = false, should_evaluate = false, should_log = false;
};

// What transformers writes into trainer_state.json.
struct TrainerState {
  double epoch = 0;         // with the share of the present one
  int64_t global_step = 0;  // updates that were made
  int64_t max_steps = 0, num_train_epochs = 0, train_batch_size = 0;
  int64_t logging_steps = 500, eval_steps = 500, save_steps = 500;
  int64_t num_input_tokens_seen = 0;
  double total_flos = 0;
  std::vector<nlohmann::json> log_history;  // one object an entry, with "step" and "epoch"
  std::optional<double> best_metric = std::nullopt;
  std::optional<int64_t> best_global_step = std::nullopt;
  std::optional<std::string> best_model_checkpoint = std::nullopt;

  // logging_steps and so on as counts.
  void set_steps(const TrainingArguments& arguments);
  nlohmann::json to_json(const TrainerControl& control) const;
  // Of a trainer_state.json, ours or transformers'; keys that are not read here are left out.
  static TrainerState read(const std::filesystem::path& file);
  void save(const std::filesystem::path& file, const TrainerControl& control) const;
};

// How fast the updates since the entry of the log before were, by all ranks, and the peak of memory so far, of this
// one.
struct TrainingRates {
  double tokens_per_second = 0;
  double flops_per_second = 0;               // TrainingWork's: what the model needs, whatever was computed
  std::optional<double> mfu = std::nullopt;  // of all devices' peak, where that is known (peak_flops_for)
  int64_t peak_memory = 0;                   // bytes: peak_device_memory()
};

// transformers' TrainerCallback: what a program hooks into a run.
struct TrainerEvent {
  const TrainingArguments& arguments;
  const TrainerState& state;
  TrainerControl& control;  // what the callback may decide
  CausalLM& model;
  const TrainingRates& rates;
};

// With several ranks each has its own callbacks. What one of them sets in the control is done by all.
class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;
  virtual void on_train_begin(const TrainerEvent&) {}
  virtual void on_train_end(const TrainerEvent&) {}
  virtual void on_epoch_begin(const TrainerEvent&) {}
  virtual void on_epoch_end(const TrainerEvent&) {}
  virtual void on_step_begin(const TrainerEvent&) {}
  virtual void on_step_end(const TrainerEvent&) {}
  virtual void on_log(const TrainerEvent&, const nlohmann::json& /*entry*/) {}
  virtual void on_evaluate(const TrainerEvent&, const nlohmann::json& /*metrics*/) {}
  virtual void on_save(const TrainerEvent&) {}  // the folder is whole
};

struct EvalMetrics {
  double eval_loss = 0;               // as transformers: each batch's mean over its labels, weighted by its examples
  double eval_loss_per_token = 0;     // the mean over all labels
  double runtime = 0;                 // seconds
  int64_t examples = 0, batches = 0;  // batches of a rank
  nlohmann::json to_json() const;     // eval_loss, eval_loss_per_token, eval_runtime, eval_samples_per_second, ...
};

// One update. Of several ranks loss, tokens and flops are this one's share in on_step_end, the loss times their count,
// and all ranks' in TrainOutput.
struct TrainingStep {
  int64_t step = 0;      // from 0
  double loss = 0;       // before this update
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double seconds = 0;            // all of it: batches, forwards, backwards, update
  int64_t num_input_tokens = 0;  // ids in its batches
  double flops = 0;              // TrainingWork's
};

struct TrainOutput {
  std::vector<TrainingStep> steps;
  double training_loss = 0;                           // mean over the steps
  nlohmann::json metrics = nlohmann::json::object();  // train_loss, train_runtime, total_flos, ...
  // Bytes of peak_device_memory(); of the loop alone where the system can tell (base/memory.h), else of the process.
  int64_t peak_memory = 0;
  bool peak_is_of_loop = false;
  std::optional<double> device_flops = std::nullopt;  // the devices' peak a second, where that is known
  std::vector<int64_t> optimizer_bytes;               // of AdamW's states, counted, of each rank
  // The first step also allocates the optimizer's state: it is left out when there are others.
  double train_tokens_per_second() const;
  double train_flops_per_second() const;
};

// One update with kernels and without: which layer it is, where a curve is not that of stock layers.
struct StepCheck {
  struct Row {
    std::string name;       // of a tensor that learns
    double norm = 0;        // L2, of its gradient without kernels
    double difference = 0;  // norm(with - without) / norm; 1 where only one of them is there, or not finite
  };
  int64_t step = 0;  // from 1, as in the log
  double loss = 0, stock_loss = 0;
  std::vector<Row> rows;  // by difference, descending
  nlohmann::json to_json() const;
};

// Parts that a Trainer makes by itself where none is given.
struct TrainerParts {
  std::shared_ptr<const Dataset> eval_dataset = nullptr;
  std::shared_ptr<AdamW> optimizer = nullptr;  // it brings its own betas and weight decay; the schedule sets its rate
  std::function<void(const TrainingStep&)> on_step_end = nullptr;  // each step waits for the device then
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
  // This update, from 1, is run with kernels and without, and compared; the run goes on as if it were not. Error where
  // the model is not kernelized.
  std::optional<int64_t> check_step = std::nullopt;
  std::function<void(const StepCheck&)> on_step_check = nullptr;
  std::shared_ptr<Ranks> ranks = nullptr;            // joined by the environment of torchrun; null: one process trains
  std::shared_ptr<const OutputLock> lock = nullptr;  // of output_dir, where the caller took it already
};

}  // namespace hotswap
