#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/memory.h"
#include "hotswap/training/finetune.h"

namespace hotswap {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double checked_loss(const Tensor& loss, int64_t step) {
  const double value = loss.item<double>();
  if (!std::isfinite(value)) {
    throw Error({.wanted = cat("a finite loss at step ", step),
                 .got = cat(value),
                 .next = "lower the learning rate, or look for rows without any label"});
  }
  return value;
}

}  // namespace

double FinetuneResult::tokens_per_second() const {
  const size_t first = steps.size() > 1 ? 1 : 0;
  double seconds = 0, tokens = 0;
  for (size_t i = first; i < steps.size(); ++i) {
    seconds += steps[i].seconds;
    tokens += static_cast<double>(steps[i].tokens);
  }
  return seconds > 0 ? tokens / seconds : 0;
}

FinetuneResult finetune(std::vector<Tensor> parameters, const LossFunction& loss, const std::vector<Tensor>& batches,
                        const FinetuneArguments& arguments, const StepCallback& callback) {
  FinetuneResult result;
  result.peak_is_of_loop = reset_peak_memory();
  for (Tensor& parameter : parameters) parameter.set_requires_grad(true);
  AdamW optimizer(std::move(parameters), arguments.optimizer);
  const auto total = static_cast<int64_t>(batches.size());
  for (int64_t step = 0; step < total; ++step) {
    const auto start = Clock::now();
    StepReport report{.step = step, .tokens = batches[step].numel()};
    report.learning_rate =
        arguments.optimizer.learning_rate * schedule_factor(arguments.schedule, step, arguments.warmup_steps, total);
    {
      const Tensor value = loss(batches[step]);
      report.loss = checked_loss(value, step);
      value.backward();
    }
    report.gradient_norm = gradient_norm(optimizer.parameters());
    optimizer.set_learning_rate(report.learning_rate);
    optimizer.step(clip_factor(report.gradient_norm, arguments.max_grad_norm));
    optimizer.zero_grad();
    report.seconds = seconds_since(start);
    result.steps.push_back(report);
    if (callback) callback(report);
  }
  result.peak_memory = peak_memory();
  return result;
}

double evaluate(const LossFunction& loss, const std::vector<Tensor>& batches) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const Tensor& batch : batches) sum += loss(batch).item<double>();
  return batches.empty() ? 0 : sum / static_cast<double>(batches.size());
}

}  // namespace hotswap
