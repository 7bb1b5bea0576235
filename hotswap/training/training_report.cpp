// What the loop does between updates: the log, evaluations, checkpoints, and the end of a run.
#include <filesystem>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/log.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/evaluation.h"
#include "hotswap/training/ranks/ranks.h"
#include "hotswap/training/resume.h"
#include "hotswap/training/trainer_state.h"
#include "hotswap/training/training_loop.h"

namespace hotswap {

namespace fs = std::filesystem;

// Each calls callbacks, which may request the next, or the end.
void TrainingLoop::act() {
  const auto on = [&](const bool& requested, void (TrainingLoop::*work)()) {
    if (!requested) return;
    (this->*work)();
    agree();
  };
  on(s_.control.should_log, &TrainingLoop::log_training);
  on(s_.control.should_evaluate, &TrainingLoop::evaluate);
  on(s_.control.should_save, &TrainingLoop::save_checkpoint);
}

void TrainingLoop::log_training() {
  if (s_.state.global_step <= last_logged_) return;
  settle();
  join_sums();
  rate();
  nlohmann::json entry = {{"loss", loss_since_log_ / static_cast<double>(s_.state.global_step - last_logged_)},
                          {"grad_norm", last_grad_norm_},
                          {"learning_rate", last_rate_}};
  if (s_.arguments.include_num_input_tokens_seen != "no") {
    const double runtime = std::chrono::duration<double>(Clock::now() - start_).count();
    entry["train_runtime"] = rounded(runtime, 4);
    const int64_t tokens = s_.state.num_input_tokens_seen - tokens_before_;
    entry["train_tokens_per_second"] = rounded(static_cast<double>(tokens) / runtime, 3);
    entry["peak_memory"] = rates_.peak_memory;
    if (rates_.mfu) entry["mfu"] = rounded(*rates_.mfu, 4);
  }
  log(std::move(entry));
  total_loss_ += loss_since_log_;
  loss_since_log_ = 0;
  last_logged_ = s_.state.global_step;
}

void TrainingLoop::rate() {
  double seconds = 0, tokens = 0, flops = 0;
  for (; rated_steps_ < out_.steps.size(); ++rated_steps_) {
    const TrainingStep& step = out_.steps[rated_steps_];
    seconds += step.seconds;
    tokens += static_cast<double>(step.num_input_tokens);
    flops += step.flops;
  }
  if (s_.parts.ranks) {
    const auto sums = s_.parts.ranks->sum({tokens, flops});
    tokens = sums[0], flops = sums[1];
  }
  if (seconds <= 0) return;
  rates_ = {.tokens_per_second = tokens / seconds,
            .flops_per_second = flops / seconds,
            .peak_memory = peak_device_memory(s_.model.device())};
  if (out_.device_flops) rates_.mfu = rates_.flops_per_second / *out_.device_flops;
}

void TrainingLoop::log(nlohmann::json entry) {
  entry["epoch"] = s_.state.epoch;
  if (s_.arguments.include_num_input_tokens_seen != "no") {
    entry["num_input_tokens_seen"] = s_.state.num_input_tokens_seen;
  }
  entry["step"] = s_.state.global_step;
  s_.state.log_history.push_back(entry);
  each_callback([&](TrainerCallback& callback) { callback.on_log(event(), entry); });
}

void TrainingLoop::evaluate() {
  settle();
  join_sums();
  const TrainingArguments& a = s_.arguments;
  const nlohmann::json metrics =
      evaluate_model(s_.model, *s_.parts.eval_dataset, a.per_device_eval_batch_size, s_.parts.ranks.get()).to_json();
  log(metrics);
  each_callback([&](TrainerCallback& callback) { callback.on_evaluate(event(), metrics); });
  last_step_ = Clock::now();  // no step's time
  const auto best = best_metric_of(a);
  if (!best) return;
  const auto value = metrics.at(best->name).get<double>();
  TrainerState& state = s_.state;
  const bool better =
      !state.best_metric || (best->greater_is_better ? value > *state.best_metric : value < *state.best_metric);
  if (better) {
    state.best_metric = value;
    if (a.save_strategy != "no") state.best_global_step = state.global_step;
  }
  if (a.save_strategy == "best") s_.control.should_save = better;
}

void TrainingLoop::save_checkpoint() {
  if (s_.arguments.output_dir.empty()) return;
  settle();
  join_sums();
  const fs::path output = s_.arguments.output_dir;
  TrainerState& state = s_.state;
  if (state.best_global_step) {
    const fs::path best = checkpoint_folder(output, *state.best_global_step);
    if (*state.best_global_step == state.global_step || fs::is_directory(best)) state.best_model_checkpoint = best;
  }
  const auto generators = all_generator_states();
  if (writes()) {
    write_checkpoint_files(generators);
  } else if (s_.shards != nullptr && !s_.arguments.save_only_model) {
    s_.shards->send_states();
  }
  wait_for_ranks();  // the checkpoint is there for all
  each_callback([&](TrainerCallback& callback) { callback.on_save(event()); });
  last_step_ = Clock::now();
}

void TrainingLoop::write_checkpoint_files(const std::vector<std::string>& generators) {
  const fs::path output = s_.arguments.output_dir;
  TrainerState& state = s_.state;
  write_checkpoint(checkpoint_folder(output, state.global_step), [&](const fs::path& folder) {
    s_.model.save_pretrained(folder);
    state.save(folder / "trainer_state.json", s_.control);
    write_file(folder / "training_arguments.json", to_json(s_.arguments).dump(2) + "\n");
    if (!s_.arguments.save_only_model) save_progress(folder, generators);
  });
  if (s_.arguments.save_total_limit) {
    drop_old_checkpoints(output, *s_.arguments.save_total_limit, state.best_model_checkpoint.value_or(""));
  }
}

void TrainingLoop::finish() {
  TrainerState& state = s_.state;
  join_sums();
  join_output();
  const double runtime = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto updates = static_cast<double>(std::max<int64_t>(1, state.global_step));
  total_loss_ += loss_since_log_;
  out_.training_loss = total_loss_ / updates;
  const TrainingArguments& a = s_.arguments;
  const auto batch = static_cast<double>(a.per_device_train_batch_size * a.gradient_accumulation_steps * ranks_);
  const double samples = a.max_steps > 0 ? static_cast<double>(a.max_steps) * batch
                                         : static_cast<double>(s_.train_dataset.size()) * a.num_train_epochs;
  out_.metrics = {{"train_runtime", rounded(runtime, 4)},
                  {"train_samples_per_second", rounded(samples / runtime, 3)},
                  {"train_steps_per_second", rounded(static_cast<double>(state.max_steps) / runtime, 3)},
                  {"total_flos", state.total_flos},
                  {"train_loss", out_.training_loss}};
  log(out_.metrics);
  if (a.load_best_model_at_end && state.best_model_checkpoint) load_best_model();
  out_.peak_memory = peak_device_memory(s_.model.device());
  each_callback([&](TrainerCallback& callback) { callback.on_train_end(event()); });
}

// As transformers: without its folder the last weights stay, and a warning names it.
void TrainingLoop::load_best_model() {
  const fs::path best = *s_.state.best_model_checkpoint;
  if (fs::is_directory(best)) return load_weights(s_.model, best);
  log_warning("the best model, ", best.string(), ", is not there any more: the model keeps its last weights");
}

}  // namespace hotswap
