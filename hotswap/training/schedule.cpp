#include "hotswap/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hotswap/base/error.h"

namespace hotswap {

Schedule schedule_from(const std::string& name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "constant_with_warmup") return Schedule::kConstantWithWarmup;
  if (name == "linear") return Schedule::kLinear;
  if (name == "cosine") return Schedule::kCosine;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "an lr_scheduler_type: constant, constant_with_warmup, linear or cosine",
               .got = cat("'", name, "'"),
               .next = "name one of these"});
}

void check_warmup(Schedule schedule, int64_t warmup_steps) {
  if (warmup_steps >= 0 && (warmup_steps == 0 || schedule != Schedule::kConstant)) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "warmup_steps of 0 or more, and 0 for the schedule constant",
               .got = cat(warmup_steps),
               .next = "take the schedule constant_with_warmup"});
}

double schedule_factor(Schedule schedule, int64_t step, int64_t warmup_steps, int64_t total_steps) {
  if (schedule == Schedule::kConstant) return 1;
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_steps));
  const double left = static_cast<double>(total_steps - step);
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  switch (schedule) {
    case Schedule::kConstant:
    case Schedule::kConstantWithWarmup:
      return 1;
    case Schedule::kLinear:
      return std::max(0.0, left / span);
    case Schedule::kCosine:
      return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * (1 - left / span))));
  }
  return 1;
}

}  // namespace hotswap
