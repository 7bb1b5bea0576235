#include "hotswap/engine/decode_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "hotswap/base/log.h"
#include "hotswap/engine/capture.h"

namespace hotswap {

DecodeStep::DecodeStep(CausalLM& model, Cache& cache, Sampler& sampler, DecodeInput in)
    : model_(model), cache_(cache), sampler_(sampler), mask_(std::move(in.mask)), history_(std::move(in.prompt)) {
  if (in.positions.defined()) positions_ = in.positions.narrow(1, in.positions.size(1) - 1, 1).clone();
}

void DecodeStep::capture(int64_t max_tokens) {
  if (auto why = why_not_capturable(model_)) return refuse(std::move(*why));
  graph_ = new_graph();
  why_not_ = "there was no second step";
  if (!sampler_.needs_history()) return;
  // What is still to come is another time the first token, which the sampler does not mind.
  history_length_ = at::full({1}, history_.size(1), history_.options());
  history_ = at::cat({history_, history_.narrow(1, 0, 1).expand({-1, max_tokens})}, 1);
}

std::unique_ptr<CudaGraph> DecodeStep::new_graph() const {
  auto graph = std::move(*make_cuda_graph(model_.device()));
  if (sampler_.generator()) graph->draws_from(*sampler_.generator());
  return graph;
}

void DecodeStep::refuse(std::string why) {
  log_warning("decode steps are not captured in a CUDA graph: ", why);
  why_not_ = std::move(why);
  graph_ = nullptr;
  reach_ = 0;
  host_tokens_ = Tensor();
}

Tensor DecodeStep::choose(const Tensor& logits) {
  const Tensor next = sampler_.next(logits, history_, history_length_);
  if (!sampler_.needs_history()) return next;
  if (history_length_.defined()) {
    history_.index_copy_(1, history_length_, next.unsqueeze(1));  // in place: a graph does so again
    history_length_.add_(1);
  } else {
    history_ = at::cat({history_, next.unsqueeze(1)}, 1);
  }
  return next;
}

Tensor DecodeStep::begin(const Tensor& logits) { return choose(logits); }

Tensor DecodeStep::forward(const Tensor& tokens) {
  return model_({.input_ids = tokens.unsqueeze(1),
                 .attention_mask = mask_,
                 .position_ids = positions_,
                 .cache = &cache_,
                 .logits_to_keep = 1})
      .logits.select(1, 0);
}

void DecodeStep::move_on() {
  if (!mask_.defined()) return;
  positions_.add_(1);  // in place: a graph reads it
  if (cache_.capacity() == 0) mask_ = at::cat({mask_, at::ones({mask_.size(0), 1}, mask_.options())}, 1);
}

// As it is captured: in memory that stays where it is.
void DecodeStep::run() {
  const Tensor logits = forward(token_);
  const auto& argmax = model_.argmax();
  if (sampler_.is_argmax() && argmax) {  // one launch
    argmax(token_, logits, mapped_tokens_, cache_.device_length());
    return;
  }
  if (sampler_.is_argmax()) {
    at::argmax_out(token_, logits, -1);
  } else {
    token_.copy_(choose(logits));
  }
  mapped_tokens_.index_copy_(0, cache_.device_length(), token_.unsqueeze(0));
}

// A step that cannot be captured runs as it is: the cache counts as before, because a capture launches nothing.
void DecodeStep::record() {
  const int64_t seen = cache_.length();
  reach_ = cache_.reach(1);
  try {
    graph_->capture([&] { run(); });
  } catch (const c10::Error& error) {
    cache_.not_run(seen);
    refuse(cat("a layer waits for the host in the middle of a step: ", error.what_without_backtrace()));
  }
}

Tensor DecodeStep::operator()(const Tensor& tokens) {
  move_on();
  if (graph_ == nullptr) return choose(forward(tokens));
  if (!begun_) {
    begun_ = true;
    token_ = tokens.clone();
    host_tokens_ =
        at::empty({cache_.capacity() + 1, token_.size(0)}, token_.options().device(at::kCPU).pinned_memory(true));
    mapped_tokens_ = at::for_blob(host_tokens_.mutable_data_ptr(), host_tokens_.sizes())
                         .options(token_.options())
                         .target_device(token_.device())  // not that of the memory, which any of them may write to
                         .make_tensor();
    graph_->warm_up([&] { run(); });
    return token_;
  }
  if (reach_ == cache_.reach(1)) {
    cache_.replayed(1);
  } else {
    if (reach_ > 0) graph_ = new_graph();
    record();
    if (graph_ == nullptr) return choose(forward(tokens));
  }
  graph_->replay();
  return token_;
}

}  // namespace hotswap
