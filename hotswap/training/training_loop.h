// The loop of Trainer::train(). For sources of this room.
#pragma once

#include <chrono>

#include "hotswap/training/data/batches_ahead.h"
#include "hotswap/training/optimizer_shards.h"
#include "hotswap/training/ranks/gradient_sync.h"
#include "hotswap/training/schedules/schedule.h"
#include "hotswap/training/trainer_parts.h"
#include "hotswap/training/training_work.h"

namespace hotswap {

int64_t rank_count(const TrainerParts& parts);

class TrainingLoop {
 public:
  struct Setup {
    CausalLM& model;
    const TrainingArguments& arguments;
    const Dataset& train_dataset;
    TrainerParts& parts;
    TrainerState& state;
    TrainerControl& control;
    std::filesystem::path resume = {};  // a checkpoint; empty: from the beginning
    OptimizerShards* shards = nullptr;  // null: each rank updates all parameters
  };
  explicit TrainingLoop(const Setup& setup);
  TrainOutput run();

  // How many forwards and updates there are.
  struct Counts {
    int64_t forwards_in_epoch, updates_in_epoch, epochs, updates;
  };
  static Counts counts_of(const TrainingArguments& arguments, const Dataset& dataset, int64_t ranks);
  static Schedule schedule_of(const TrainingArguments& arguments, const Dataset& dataset, int64_t ranks);

 private:
  using Clock = std::chrono::steady_clock;
  // An update whose loss and norm may still be on the device.
  struct Pending {
    TrainingStep step;
    Tensor loss, norm;  // [] float32
  };

  // Where a run is in its data: what the next update begins with.
  struct Position {
    int64_t epoch = 0, batches = 0;  // batches of this epoch that were read
    bool epoch_ended = false;        // and logged, evaluated and saved as the arguments have it
  };

  void run_epoch(int64_t epoch, int64_t first_batch);
  std::vector<BatchesAhead::Update> updates_from(const std::vector<std::vector<int64_t>>& batches, size_t first) const;
  void update(const BatchesAhead::Read& read);
  Tensor forward_backward(const BatchesAhead::Read& read);
  Tensor checked_forward_backward(const BatchesAhead::Read& read);
  void settle();  // reads what is pending; Error where a value is not finite
  void after_update();
  void act();  // logs, evaluates and saves as the control has it
  // Of training_loop_ranks.cpp: nothing where one process trains.
  void start_ranks();
  void lay_out_buckets();
  void count(double flos, int64_t tokens);  // of an update of this rank
  void join_sums();                         // what each rank has counted since the last time, into the sums of all
  void join_output();                       // steps and memory of states as the whole run's
  void agree();                             // what a callback of any rank has set in the control
  bool writes() const;                      // this is the only process, or the first rank
  std::vector<std::string> all_generator_states() const;
  void wait_for_ranks() const;
  void log_training();
  void rate();  // the updates since the last log
  void log(nlohmann::json entry);
  void evaluate();
  void save_checkpoint();
  // Of training_loop_resume.cpp: what a checkpoint has beside the model, and back.
  void write_checkpoint_files(const std::vector<std::string>& generators);
  ParameterNames parameter_names() const;  // of the optimizer
  void save_progress(const std::filesystem::path& folder, const std::vector<std::string>& generators);
  void restore();
  void check_same_data(const std::filesystem::path& folder) const;
  void restore_generators(const std::filesystem::path& folder, bool needed) const;
  void restore_progress(const std::filesystem::path& folder);
  int64_t examples_in_forward() const { return s_.arguments.per_device_train_batch_size * ranks_; }
  double next_rate() const;
  void finish();
  void load_best_model();
  int64_t tokens_in(const std::vector<TrainingBatch>& batches) const;
  TrainerEvent event() { return {s_.arguments, s_.state, s_.control, s_.model, rates_}; }
  template <typename Call>
  void each_callback(const Call& call) {
    for (const auto& callback : s_.parts.callbacks) call(*callback);
  }

  Setup s_;
  Counts counts_;
  Schedule schedule_;
  TrainOutput out_;
  std::vector<Pending> pending_;
  Clock::time_point start_, last_step_;
  double flos_a_token_ = 0;  // of forward and backward
  TrainingWork work_;
  TrainingRates rates_;
  size_t rated_steps_ = 0;                     // of out_.steps
  double loss_since_log_ = 0;                  // summed over the updates since then
  int64_t last_logged_ = 0;                    // the step
  double last_grad_norm_ = 0, last_rate_ = 0;  // of the last update, for its entry of the log
  double total_loss_ = 0;
  int64_t tokens_before_ = 0;  // num_input_tokens_seen where a resumed run begins
  Position position_;
  int64_t ranks_ = 1;
  std::unique_ptr<GradientSync> sync_;  // null: one process trains
  struct Sums {
    double loss = 0, tokens = 0, flos = 0;
  };
  Sums own_sums_;  // of this rank, since join_sums(); of one process nothing is kept apart
};

}  // namespace hotswap
