#include "hotswap/training/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <regex>

#include "hotswap/base/error.h"
#include "hotswap/base/memory.h"
#include "hotswap/training/sampler.h"
#include "hotswap/training/schedule.h"

namespace hotswap {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check(const TrainingArguments& a) {
  const auto positive = [](const char* name, double value) {
    if (value > 0) return;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(name, " above 0"),
                 .got = cat(value),
                 .next = "leave it out to take its default"});
  };
  positive("per_device_train_batch_size", static_cast<double>(a.per_device_train_batch_size));
  positive("per_device_eval_batch_size", static_cast<double>(a.per_device_eval_batch_size));
  positive("gradient_accumulation_steps", static_cast<double>(a.gradient_accumulation_steps));
  if (a.max_steps <= 0) positive("max_steps or num_train_epochs", a.num_train_epochs);
  sampling_strategy_from(a.train_sampling_strategy);
  check_warmup(schedule_from(a.lr_scheduler_type), a.warmup_steps);
}

// Position 0 of each row predicts nothing from before it: the model shifts labels.
int64_t label_count(const TrainingBatch& batch) {
  return batch.labels.narrow(1, 1, batch.labels.size(1) - 1).ne(-100).sum().item<int64_t>();
}

bool has_labels(const std::vector<TrainingBatch>& batches) {
  return std::any_of(batches.begin(), batches.end(), [](const TrainingBatch& batch) { return label_count(batch) > 0; });
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

double TrainOutput::train_tokens_per_second() const {
  const size_t first = steps.size() > 1 ? 1 : 0;
  double seconds = 0, tokens = 0;
  for (size_t i = first; i < steps.size(); ++i) {
    seconds += steps[i].seconds;
    tokens += static_cast<double>(steps[i].num_input_tokens);
  }
  return seconds > 0 ? tokens / seconds : 0;
}

std::shared_ptr<AdamW> make_optimizer(CausalLM& model, const TrainingArguments& arguments) {
  // The names that transformers leaves out.
  static const std::regex kNoDecay(R"(bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.))", std::regex::icase);
  ParameterGroup decayed{.weight_decay = arguments.weight_decay}, others{.weight_decay = 0};
  model.each_tensor([&](const std::string& name, Tensor& tensor) {
    if (!tensor.requires_grad()) return;
    (std::regex_search(name, kNoDecay) ? others : decayed).parameters.push_back(tensor);
  });
  return std::make_shared<AdamW>(std::vector{decayed, others}, AdamWOptions{.learning_rate = arguments.learning_rate,
                                                                            .beta1 = arguments.adam_beta1,
                                                                            .beta2 = arguments.adam_beta2,
                                                                            .eps = arguments.adam_epsilon});
}

Trainer::Trainer(std::shared_ptr<CausalLM> model, TrainingArguments arguments,
                 std::shared_ptr<const Dataset> train_dataset, TrainerParts parts)
    : model_(std::move(model)),
      arguments_(std::move(arguments)),
      train_dataset_(std::move(train_dataset)),
      parts_(std::move(parts)) {
  check(arguments_);
  if (!parts_.optimizer) parts_.optimizer = make_optimizer(*model_, arguments_);
  if (parts_.optimizer->parameters().empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a model with parameters that require gradients",
                 .got = "none",
                 .next = "call model->requires_grad(true) first"});
  }
}

int64_t Trainer::update_count() const {
  if (arguments_.max_steps > 0) return arguments_.max_steps;
  const int64_t forwards = divide_up(train_dataset_->size(), arguments_.per_device_train_batch_size);
  const int64_t in_epoch = divide_up(forwards, arguments_.gradient_accumulation_steps);
  return static_cast<int64_t>(std::ceil(arguments_.num_train_epochs * static_cast<double>(in_epoch)));
}

// Those of one update: fewer at the end of an epoch.
std::vector<TrainingBatch> Trainer::next_batches(ExampleSampler& sampler) const {
  std::vector<TrainingBatch> batches;
  do {
    TrainingBatch batch = train_dataset_->batch(sampler.next(arguments_.per_device_train_batch_size));
    batches.push_back({batch.input_ids.to(model_->device()), batch.labels.to(model_->device())});
  } while (static_cast<int64_t>(batches.size()) < arguments_.gradient_accumulation_steps && !sampler.at_epoch_end());
  return batches;
}

double Trainer::forward_backward(const std::vector<TrainingBatch>& batches) {
  std::optional<double> items;  // one batch: the loss counts its labels by itself
  if (batches.size() > 1) {
    int64_t labels = 0;
    for (const TrainingBatch& batch : batches) labels += label_count(batch);
    items = static_cast<double>(labels);
  }
  Tensor sum = at::zeros({}, at::TensorOptions(at::kFloat).device(model_->device()));
  for (const TrainingBatch& batch : batches) {
    const Tensor loss =
        (*model_)({.input_ids = batch.input_ids, .labels = batch.labels, .num_items_in_batch = items}).loss;
    loss.backward();
    sum += loss.detach();
  }
  return sum.item<double>();
}

TrainOutput Trainer::train() {
  TrainOutput out;
  out.peak_is_of_loop = reset_peak_memory();
  model_->train();
  AdamW& optimizer = *parts_.optimizer;
  const Schedule schedule = schedule_from(arguments_.lr_scheduler_type);
  ExampleSampler sampler(train_dataset_->size(), sampling_strategy_from(arguments_.train_sampling_strategy),
                         arguments_.seed);
  const int64_t updates = update_count();
  for (int64_t step = 0; step < updates; ++step) {
    const auto start = Clock::now();
    const auto batches = next_batches(sampler);
    TrainingStep done{.step = step, .loss = forward_backward(batches)};
    if (!std::isfinite(done.loss)) {
      if (has_labels(batches)) {
        throw Error({.kind = ErrorKind::kInvalidArgument,
                     .wanted = cat("a finite loss at step ", step),
                     .got = cat(done.loss),
                     .next = "lower the learning rate, or look for broken weights"});
      }
      done.loss = 0;  // a mean over no label: its gradients are 0
    }
    done.learning_rate = arguments_.learning_rate * schedule_factor(schedule, step, arguments_.warmup_steps, updates);
    done.grad_norm = gradient_norm(optimizer.parameters());
    optimizer.set_learning_rate(done.learning_rate);
    optimizer.step(clip_factor(done.grad_norm, arguments_.max_grad_norm));
    optimizer.zero_grad();
    for (const TrainingBatch& batch : batches) done.num_input_tokens += batch.input_ids.numel();
    done.seconds = seconds_since(start);
    out.training_loss += done.loss / static_cast<double>(updates);
    out.steps.push_back(done);
    if (parts_.on_step_end) parts_.on_step_end(done);
  }
  out.peak_memory = peak_memory();
  return out;
}

double Trainer::evaluate() {
  if (!parts_.eval_dataset) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an eval_dataset",
                 .got = "none",
                 .next = "give one to the Trainer"});
  }
  const at::NoGradGuard no_grad;
  const bool was_training = model_->training();
  model_->eval();
  ExampleSampler sampler(parts_.eval_dataset->size(), SamplingStrategy::kSequential, 0);
  double sum = 0;
  int64_t labels = 0;
  while (!sampler.at_epoch_end()) {
    const TrainingBatch batch = parts_.eval_dataset->batch(sampler.next(arguments_.per_device_eval_batch_size));
    const int64_t count = label_count(batch);
    if (count == 0) continue;  // its mean is over nothing
    const Tensor ids = batch.input_ids.to(model_->device());
    const auto out = (*model_)({.input_ids = ids, .labels = batch.labels.to(model_->device()), .need_logits = false});
    sum += out.loss.item<double>() * static_cast<double>(count);
    labels += count;
  }
  model_->train(was_training);
  return sum / static_cast<double>(labels);
}

}  // namespace hotswap
