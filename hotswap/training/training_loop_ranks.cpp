// What the loop does where several ranks train.
#include <ATen/ops/arange.h>
#include <ATen/ops/remainder.h>

#include <set>

#include "hotswap/layers/adapter.h"
#include "hotswap/models/config.h"
#include "hotswap/training/checkpoint/generators.h"
#include "hotswap/training/ranks/ranks.h"
#include "hotswap/training/training_loop.h"

namespace hotswap {

int64_t rank_count(const TrainerParts& parts) { return parts.ranks ? parts.ranks->size() : 1; }

bool TrainingLoop::writes() const { return !s_.parts.ranks || s_.parts.ranks->is_first(); }

void TrainingLoop::start_ranks() {
  if (!s_.parts.ranks) return;
  std::set<const void*> updated;
  for (const Tensor& parameter : s_.parts.optimizer->parameters()) updated.insert(parameter.unsafeGetTensorImpl());
  TrainedTensors trained;
  s_.model.each_trained([&](const std::string& name, Tensor& tensor) {
    if (!updated.contains(tensor.unsafeGetTensorImpl())) return;
    trained.tensors.push_back(tensor);
    trained.names.push_back(name);
  });
  const TrainingArguments& a = s_.arguments;
  sync_ =
      s_.parts.ranks->gradient_sync(trained, {.bucket_mib = a.ddp_bucket_cap_mb.value_or(25),
                                              .find_unused_parameters = a.ddp_find_unused_parameters.value_or(false)});
  if (ranks_ > 2 && !a.ddp_find_unused_parameters.value_or(false)) lay_out_buckets();
}

// The reducer lays its buckets out once more in the order of the first backward that it sees. Of more than two ranks
// the layout decides in which order gradients are added up: without this an update after a resume would have other bits
// than in the run that was not interrupted. So the first backward is one whose gradients are dropped.
void TrainingLoop::lay_out_buckets() {
  const Tensor draws = dropout_draws();
  const Tensor ids = at::arange(8, at::TensorOptions(at::kLong).device(s_.model.device()))
                         .remainder(s_.model.config().vocab_size)
                         .view({1, -1});
  sync_->before_forward(true);
  const Tensor loss = s_.model({.input_ids = ids, .labels = ids}).loss;
  sync_->before_backward(loss, true);
  loss.backward();
  sync_->after_backward(true);
  s_.parts.optimizer->zero_grad();
  set_dropout_draws(draws);
}

void TrainingLoop::count(double flos, int64_t tokens) {
  if (sync_) {
    own_sums_.flos += flos;
    own_sums_.tokens += static_cast<double>(tokens);
  } else {
    s_.state.total_flos += flos;
    s_.state.num_input_tokens_seen += tokens;
  }
}

void TrainingLoop::join_sums() {
  if (!sync_) return;
  const auto sums = s_.parts.ranks->sum({own_sums_.loss, own_sums_.tokens, own_sums_.flos});
  own_sums_ = {};
  loss_since_log_ += sums[0] / static_cast<double>(ranks_);
  s_.state.num_input_tokens_seen += static_cast<int64_t>(sums[1]);
  s_.state.total_flos += sums[2];
}

void TrainingLoop::join_output() {
  out_.optimizer_bytes.assign(1, s_.parts.optimizer->state_bytes());
  if (!sync_) return;
  std::vector<double> values(static_cast<size_t>(ranks_), 0);
  values[static_cast<size_t>(s_.parts.ranks->rank())] = static_cast<double>(out_.optimizer_bytes[0]);
  for (const TrainingStep& step : out_.steps) {
    values.insert(values.end(), {step.loss, static_cast<double>(step.num_input_tokens), step.flops});
  }
  values = s_.parts.ranks->sum(values);
  auto value = values.begin();
  out_.optimizer_bytes.clear();
  for (int64_t rank = 0; rank < ranks_; ++rank) out_.optimizer_bytes.push_back(static_cast<int64_t>(*value++));
  for (TrainingStep& step : out_.steps) {
    step.loss = *value++ / static_cast<double>(ranks_);
    step.num_input_tokens = static_cast<int64_t>(*value++);
    step.flops = *value++;
  }
}

void TrainingLoop::agree() {
  if (!sync_) return;
  TrainerControl& control = s_.control;
  bool* flags[] = {&control.should_training_stop, &control.should_epoch_stop, &control.should_save,
                   &control.should_evaluate, &control.should_log};
  std::vector<double> values;
  for (const bool* flag : flags) values.push_back(*flag ? 1 : 0);
  values = s_.parts.ranks->max(values);
  for (size_t i = 0; i < values.size(); ++i) *flags[i] = values[i] > 0;
}

std::vector<std::string> TrainingLoop::all_generator_states() const {
  std::string own = generator_states(s_.model.device());
  return s_.parts.ranks ? s_.parts.ranks->to_first(own) : std::vector{std::move(own)};
}

void TrainingLoop::wait_for_ranks() const {
  if (s_.parts.ranks) s_.parts.ranks->barrier();
}

}  // namespace hotswap
