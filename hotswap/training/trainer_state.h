// When a run logs, evaluates and saves, and which of its models is the best. For sources of this room.
#pragma once

#include <optional>
#include <string>

#include "hotswap/training/trainer_parts.h"

namespace hotswap {

// transformers' DefaultFlowCallback: when the arguments request a log, an evaluation or a checkpoint.
void decide_after_step(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control);
void decide_after_epoch(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control);

// The metric of metric_for_best_model with its prefix, and whether more of it is better. Error where it is no metric of
// an evaluation. None where no best model is kept.
struct BestMetric {
  std::string name;
  bool greater_is_better;
};
std::optional<BestMetric> best_metric_of(const TrainingArguments& arguments);

}  // namespace hotswap
