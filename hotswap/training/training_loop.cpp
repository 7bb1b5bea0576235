#include "hotswap/training/training_loop.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/memory.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/evaluation.h"
#include "hotswap/training/ranks/ranks.h"
#include "hotswap/training/step_check.h"
#include "hotswap/training/trainer_state.h"

namespace hotswap {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// transformers' count: 6 operations a token and a parameter, without the embedding.
double flos_of(CausalLM& model) {
  int64_t parameters = 0;
  const auto count = [&](const std::string& name, Tensor& tensor) {
    if (!name.ends_with("embed_tokens.weight")) parameters += tensor.numel();
  };
  model.each_parameter(count);
  if (model.trains_adapter()) {
    model.each_trained([&](const std::string& name, Tensor& tensor) {
      if (name.find(".lora_") != std::string::npos) count(name, tensor);
    });
  }
  return 6.0 * static_cast<double>(parameters);
}

void check_finite(const TrainingStep& step, const char* what, double value) {
  if (std::isfinite(value)) return;
  throw Error(
      {.kind = ErrorKind::kInvalidArgument,
       .wanted = cat("a finite ", what, " at step ", step.step),
       .got = cat(value),
       .next = "lower the learning rate, or look for broken weights or data; the weights are those before this step"});
}

}  // namespace

TrainingLoop::Counts TrainingLoop::counts_of(const TrainingArguments& a, const Dataset& dataset, int64_t ranks) {
  const int64_t batch = a.per_device_train_batch_size, examples = dataset.size();
  const int64_t forwards =
      a.dataloader_drop_last ? examples / batch / ranks : divide_up(divide_up(examples, batch), ranks);
  if (forwards == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("at least one batch of ", batch, " examples", ranks > 1 ? " for each rank" : ""),
                 .got = cat(examples, " examples", a.dataloader_drop_last ? ", and dataloader_drop_last" : ""),
                 .next = "give more data, or a smaller per_device_train_batch_size"});
  }
  Counts counts{.forwards_in_epoch = forwards,
                .updates_in_epoch = divide_up(forwards, a.gradient_accumulation_steps),
                .epochs = static_cast<int64_t>(std::ceil(a.num_train_epochs)),
                .updates = 0};
  counts.updates = static_cast<int64_t>(std::ceil(a.num_train_epochs * static_cast<double>(counts.updates_in_epoch)));
  if (a.max_steps > 0) {
    counts.updates = a.max_steps;
    counts.epochs = divide_up(a.max_steps, counts.updates_in_epoch);
  }
  return counts;
}

Schedule TrainingLoop::schedule_of(const TrainingArguments& a, const Dataset& dataset, int64_t ranks) {
  const int64_t updates = counts_of(a, dataset, ranks).updates;
  return {a.lr_scheduler_type,
          {.warmup_steps = warmup_count(a.warmup_steps, updates),
           .total_steps = updates,
           .learning_rate = a.learning_rate,
           .kwargs = a.lr_scheduler_kwargs}};
}

TrainingLoop::TrainingLoop(const Setup& setup)
    : s_(setup),
      counts_(counts_of(setup.arguments, setup.train_dataset, rank_count(setup.parts))),
      schedule_(schedule_of(setup.arguments, setup.train_dataset, rank_count(setup.parts))),
      flos_a_token_(flos_of(setup.model)),
      work_(setup.model),
      ranks_(rank_count(setup.parts)) {}

TrainOutput TrainingLoop::run() {
  out_.peak_is_of_loop = reset_peak_device_memory(s_.model.device());
  if (const auto flops = peak_flops_for(s_.model)) out_.device_flops = *flops * static_cast<double>(ranks_);
  s_.state = {.max_steps = counts_.updates,
              .num_train_epochs = counts_.epochs,
              .train_batch_size = s_.arguments.per_device_train_batch_size};
  s_.state.set_steps(s_.arguments);
  s_.control = {};
  if (!s_.resume.empty()) restore();
  tokens_before_ = s_.state.num_input_tokens_seen;
  s_.model.train();
  start_ranks();
  start_ = last_step_ = Clock::now();
  each_callback([&](TrainerCallback& callback) { callback.on_train_begin(event()); });
  if (s_.arguments.eval_on_start && s_.resume.empty()) evaluate();
  const Position first = position_;
  s_.control.should_training_stop = s_.state.global_step >= counts_.updates && first.epoch_ended;
  for (int64_t epoch = first.epoch + (first.epoch_ended ? 1 : 0);
       epoch < counts_.epochs && !s_.control.should_training_stop; ++epoch) {
    run_epoch(epoch, epoch == first.epoch ? first.batches : 0);
  }
  settle();
  finish();
  return std::move(out_);
}

void TrainingLoop::run_epoch(int64_t epoch, int64_t first_batch) {
  const TrainingArguments& a = s_.arguments;
  s_.control.should_epoch_stop = false;
  each_callback([&](TrainerCallback& callback) { callback.on_epoch_begin(event()); });
  const auto order = epoch_order(s_.train_dataset.size(), sampling_strategy_from(a.train_sampling_strategy),
                                 a.data_seed.value_or(a.seed), epoch);
  const auto batches = batches_of_ranks(order, a.per_device_train_batch_size, a.dataloader_drop_last, ranks_);
  auto at = static_cast<size_t>(first_batch);
  BatchesAhead ahead(s_.train_dataset, updates_from(batches, at));
  while (ahead.left() > 0) {
    each_callback([&](TrainerCallback& callback) { callback.on_step_begin(event()); });
    const auto read = ahead.next();
    update(read);
    at += read.batches.size();
    s_.state.epoch =
        static_cast<double>(epoch) + static_cast<double>(at) / static_cast<double>(counts_.forwards_in_epoch);
    position_ = {.epoch = epoch, .batches = static_cast<int64_t>(at)};
    after_update();
    if (s_.control.should_epoch_stop || s_.control.should_training_stop) break;
  }
  s_.control.should_log = s_.control.should_evaluate = s_.control.should_save = false;
  position_.epoch_ended = true;
  decide_after_epoch(a, s_.state, s_.control);
  each_callback([&](TrainerCallback& callback) { callback.on_epoch_end(event()); });
  agree();
  act();
}

// The updates that an epoch's batches make from each rank's batch `first` on, of which no more are read than there are
// to do.
std::vector<BatchesAhead::Update> TrainingLoop::updates_from(const std::vector<std::vector<int64_t>>& batches,
                                                             size_t first) const {
  std::vector<BatchesAhead::Update> updates;
  const auto ranks = static_cast<size_t>(ranks_);
  const size_t rank = s_.parts.ranks ? static_cast<size_t>(s_.parts.ranks->rank()) : 0;
  const auto group = static_cast<size_t>(s_.arguments.gradient_accumulation_steps) * ranks;
  const auto left = static_cast<size_t>(std::max<int64_t>(0, counts_.updates - s_.state.global_step));
  for (size_t at = first * ranks; at < batches.size() && updates.size() < left; at += group) {
    BatchesAhead::Update& update = updates.emplace_back();
    for (size_t i = at; i < std::min(batches.size(), at + group); ++i) {
      (i % ranks == rank ? update.own : update.others).push_back(batches[i]);
    }
  }
  return updates;
}

void TrainingLoop::update(const BatchesAhead::Read& read) {
  if (s_.parts.ranks) s_.parts.ranks->at_step(s_.state.global_step);
  const Tensor loss =
      s_.parts.check_step == s_.state.global_step + 1 ? checked_forward_backward(read) : forward_backward(read);

  AdamW& optimizer = *s_.parts.optimizer;
  Tensor norm = gradient_norm_tensor(optimizer.parameters());
  if (!norm.defined()) norm = at::zeros({}, at::TensorOptions(at::kFloat));
  TrainingStep step{.step = s_.state.global_step,
                    .learning_rate = s_.arguments.learning_rate * schedule_.factor(s_.state.global_step)};
  optimizer.set_learning_rate(step.learning_rate);
  optimizer.step_clipped(norm, s_.arguments.max_grad_norm);
  if (s_.shards != nullptr) s_.shards->broadcast_parameters();
  optimizer.zero_grad();
  for (const TrainingBatch& batch : read.batches) {
    step.num_input_tokens += batch.input_ids.numel();
    // Of a packed row the sequences in it, as if they had one length.
    const int64_t rows = batch.cu_seqlens.defined() ? batch.cu_seqlens.numel() - 1 : batch.input_ids.size(0);
    step.flops += work_.flops(rows, batch.input_ids.numel() / std::max<int64_t>(1, rows));
  }
  count(flos_a_token_ * static_cast<double>(step.num_input_tokens), tokens_in(read.batches));
  ++s_.state.global_step;

  // On a GPU the host reads a step's values while the next one runs, unless a callback waits for them.
  const bool wait = s_.model.device().is_cpu() || s_.parts.on_step_end;
  if (!wait) settle();
  pending_.push_back({step, loss, norm});
  if (wait) settle();
  const auto now = Clock::now();
  (wait ? out_.steps.back() : pending_.back().step).seconds = seconds_between(last_step_, now);
  if (wait && s_.parts.on_step_end) s_.parts.on_step_end(out_.steps.back());
  last_step_ = Clock::now();
}

// The mean over the labels of all batches of the update, of every rank's, counted on the host before anything is
// copied. Gradients of ranks become their mean: so each rank's part of the mean loss counts as often as there are
// ranks.
Tensor TrainingLoop::forward_backward(const BatchesAhead::Read& read) {
  const bool over_ranks = s_.arguments.average_tokens_across_devices;
  int64_t labels = over_ranks ? read.labels_of_others : 0;
  for (const TrainingBatch& batch : read.batches) labels += label_count(batch);
  Tensor sum = at::zeros({}, at::TensorOptions(at::kFloat).device(s_.model.device()));
  for (const TrainingBatch& batch : read.batches) {
    const bool last = &batch == &read.batches.back();
    ForwardArguments arguments = forward_arguments(batch, s_.model.device());
    arguments.need_logits = std::nullopt;
    // Without any label the sum is 0, whatever it is divided by, and so are its gradients.
    arguments.num_items_in_batch = static_cast<double>(std::max<int64_t>(1, labels));
    if (sync_) sync_->before_forward(last);
    Tensor loss = s_.model(arguments).loss;
    if (ranks_ > 1 && over_ranks) loss = loss * ranks_;
    if (sync_) sync_->before_backward(loss, last);
    loss.backward();
    if (sync_) sync_->after_backward(last);
    sum += loss.detach();
  }
  return sum;
}

Tensor TrainingLoop::checked_forward_backward(const BatchesAhead::Read& read) {
  Tensor loss;  // the first one's, with kernels
  StepCheck check = check_step(s_.model, [&] {
    const Tensor made = forward_backward(read);
    if (!loss.defined()) loss = made;
    return made;
  });
  check.step = s_.state.global_step + 1;
  if (s_.parts.on_step_check) s_.parts.on_step_check(check);
  return loss;
}

int64_t TrainingLoop::tokens_in(const std::vector<TrainingBatch>& batches) const {
  const std::string& what = s_.arguments.include_num_input_tokens_seen;
  int64_t tokens = 0;
  for (const TrainingBatch& batch : batches) {
    const bool masked = what == "non_padding" && batch.attention_mask.defined();
    if (what != "no") tokens += masked ? batch.attention_mask.sum().item<int64_t>() : batch.input_ids.numel();
  }
  return tokens;
}

void TrainingLoop::settle() {
  for (Pending& one : pending_) {
    one.step.loss = one.loss.item<double>();
    one.step.grad_norm = one.norm.item<double>();
    check_finite(one.step, "loss", one.step.loss);
    check_finite(one.step, "gradient norm", one.step.grad_norm);
    (sync_ ? own_sums_.loss : loss_since_log_) += one.step.loss;
    last_grad_norm_ = one.step.grad_norm;
    last_rate_ = one.step.learning_rate;
    out_.steps.push_back(one.step);
  }
  pending_.clear();
}

void TrainingLoop::after_update() {
  s_.control.should_log = s_.control.should_evaluate = s_.control.should_save = false;
  decide_after_step(s_.arguments, s_.state, s_.control);
  each_callback([&](TrainerCallback& callback) { callback.on_step_end(event()); });
  agree();
  act();
}

}  // namespace hotswap
