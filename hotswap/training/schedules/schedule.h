// Learning rate as a factor of its peak, as transformers' get_scheduler has it: the names, what lr_scheduler_kwargs may
// hold, and the order of the arithmetic, so that a rate is transformers' own to the last bit.
//
//   const Schedule schedule("cosine", {.warmup_steps = 10, .total_steps = 100, .learning_rate = 1e-4});
//   optimizer.set_learning_rate(1e-4 * schedule.factor(step));
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hotswap {

struct ScheduleSpan {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double learning_rate = 1;  // the peak, which "polynomial" and "min_lr" count from
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();  // lr_scheduler_kwargs
};

class Schedule {
 public:
  // Error for an unknown name, for a key of kwargs that this schedule has not, and for a warm-up that it would ignore.
  Schedule(const std::string& name, const ScheduleSpan& span);
  // step counts from 0, as the n-th call of optimizer.step() does.
  double factor(int64_t step) const { return factor_(step); }
  static const std::vector<std::string>& names();

 private:
  std::function<double(int64_t)> factor_;
};

// TrainingArguments.warmup_steps: from 1 on a count, below it a share of all steps.
int64_t warmup_count(double warmup_steps, int64_t total_steps);

}  // namespace hotswap
