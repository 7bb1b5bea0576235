#include "hotswap/training/trainer_state.h"

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/nearest_name.h"

namespace hotswap {
namespace {

int64_t step_count(double steps, int64_t max_steps) {
  if (steps >= 1) return static_cast<int64_t>(steps);
  return static_cast<int64_t>(std::ceil(static_cast<double>(max_steps) * steps));
}

template <typename T>
nlohmann::json json_or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

void TrainerState::set_steps(const TrainingArguments& a) {
  logging_steps = step_count(a.logging_steps, max_steps);
  eval_steps = step_count(a.eval_steps.value_or(a.logging_steps), max_steps);
  save_steps = step_count(a.save_steps, max_steps);
}

nlohmann::json TrainerState::to_json(const TrainerControl& control) const {
  const nlohmann::json flags = {{"should_training_stop", control.should_training_stop},
                                {"should_epoch_stop", control.should_epoch_stop},
                                {"should_save", control.should_save},
                                {"should_evaluate", control.should_evaluate},
                                {"should_log", control.should_log}};
  return {{"epoch", epoch},
          {"global_step", global_step},
          {"max_steps", max_steps},
          {"logging_steps", logging_steps},
          {"eval_steps", eval_steps},
          {"save_steps", save_steps},
          {"train_batch_size", train_batch_size},
          {"num_train_epochs", num_train_epochs},
          {"num_input_tokens_seen", num_input_tokens_seen},
          {"total_flos", total_flos},
          {"log_history", log_history},
          {"best_metric", json_or_null(best_metric)},
          {"best_global_step", json_or_null(best_global_step)},
          {"best_model_checkpoint", json_or_null(best_model_checkpoint)},
          {"is_local_process_zero", true},
          {"is_world_process_zero", true},
          {"is_hyper_param_search", false},
          {"trial_name", nullptr},
          {"trial_params", nullptr},
          {"stateful_callbacks", {{"TrainerControl", {{"args", flags}, {"attributes", nlohmann::json::object()}}}}}};
}

void TrainerState::save(const std::filesystem::path& file, const TrainerControl& control) const {
  write_file(file, to_json(control).dump(2) + "\n");
}

TrainerState TrainerState::read(const std::filesystem::path& file) {
  const Json json = Json::read(file);
  TrainerState state{.epoch = json.get<double>("epoch", 0),
                     .global_step = json.at<int64_t>("global_step"),
                     .max_steps = json.at<int64_t>("max_steps"),
                     .num_train_epochs = static_cast<int64_t>(json.get<double>("num_train_epochs", 0)),
                     .train_batch_size = json.get<int64_t>("train_batch_size", 0),
                     .logging_steps = json.get<int64_t>("logging_steps", 500),
                     .eval_steps = json.get<int64_t>("eval_steps", 500),
                     .save_steps = json.get<int64_t>("save_steps", 500),
                     .num_input_tokens_seen = json.get<int64_t>("num_input_tokens_seen", 0),
                     .total_flos = json.get<double>("total_flos", 0)};
  for (const Json& entry : json.child("log_history").elements()) {
    state.log_history.push_back(nlohmann::json::parse(entry.raw().dump()));
  }
  if (const auto metric = json.find("best_metric")) state.best_metric = metric->as<double>();
  if (const auto step = json.find("best_global_step")) state.best_global_step = step->as<int64_t>();
  if (const auto best = json.find("best_model_checkpoint")) state.best_model_checkpoint = best->as<std::string>();
  return state;
}

void decide_after_step(const TrainingArguments& a, const TrainerState& state, TrainerControl& control) {
  const auto every = [&](int64_t steps) { return steps > 0 && state.global_step % steps == 0; };
  const bool may_evaluate = a.eval_strategy == "steps" && a.eval_delay <= static_cast<double>(state.global_step);
  const bool last = state.global_step >= state.max_steps;
  if (state.global_step == 1 && a.logging_first_step) control.should_log = true;
  if (a.logging_strategy == "steps" && every(state.logging_steps)) control.should_log = true;
  if (may_evaluate && (last || every(state.eval_steps))) control.should_evaluate = true;
  if (a.save_strategy == "steps" && (last || every(state.save_steps))) control.should_save = true;
  if (last) control.should_training_stop = true;
}

void decide_after_epoch(const TrainingArguments& a, const TrainerState& state, TrainerControl& control) {
  if (a.logging_strategy == "epoch") control.should_log = true;
  if (a.eval_strategy == "epoch" && a.eval_delay <= state.epoch) control.should_evaluate = true;
  if (a.save_strategy == "epoch") control.should_save = true;
}

std::optional<BestMetric> best_metric_of(const TrainingArguments& a) {
  if (!a.metric_for_best_model && !a.load_best_model_at_end) return std::nullopt;
  std::string name = a.metric_for_best_model.value_or("loss");
  if (!name.starts_with("eval_")) name = "eval_" + name;
  const std::vector<std::string> known = {"eval_loss", "eval_loss_per_token"};
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a metric_for_best_model out of ", join(known)),
                 .got = cat("'", *a.metric_for_best_model, "'"),
                 .next = nearest_name_hint(name, known)});
  }
  return BestMetric{.name = name, .greater_is_better = a.greater_is_better.value_or(false)};
}

}  // namespace hotswap
