// Learning rate as a factor of its peak, as transformers' get_scheduler: a linear warm-up (not for "constant"), then
// constant, linear to 0, or half a cosine to 0.
#pragma once

#include <cstdint>
#include <string>

namespace hotswap {

enum class Schedule { kConstant, kConstantWithWarmup, kLinear, kCosine };

// "constant", "constant_with_warmup", "linear", "cosine"; Error for another name.
Schedule schedule_from(const std::string& name);

// Error where the schedule would not look at the warm-up.
void check_warmup(Schedule schedule, int64_t warmup_steps);

// step counts from 0, as the n-th call of optimizer.step() does.
double schedule_factor(Schedule schedule, int64_t step, int64_t warmup_steps, int64_t total_steps);

}  // namespace hotswap
