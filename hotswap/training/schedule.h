// Learning rate as a factor of its peak, as transformers' get_scheduler: a linear warm-up, then constant, linear to 0,
// or half a cosine to 0.
#pragma once

#include <cstdint>
#include <string>

namespace hotswap {

enum class Schedule { kConstant, kLinear, kCosine };

// "constant", "linear", "cosine"; Error for another name.
Schedule schedule_from(const std::string& name);

// step counts from 0, as the n-th call of optimizer.step() does.
double schedule_factor(Schedule schedule, int64_t step, int64_t warmup_steps, int64_t total_steps);

}  // namespace hotswap
