#include "hotswap/engine/decode_step.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include "hotswap/base/log.h"
#include "hotswap/engine/capture.h"

namespace hotswap {

DecodeStep::DecodeStep(CausalLM& model, KvPool& pool, int64_t capacity, Sampler& sampler, Tensor prompt)
    : model_(model), sampler_(sampler), step_(pool, capacity), history_(std::move(prompt)), capacity_(capacity) {}

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
  kv_bucket_ = 0;
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

Tensor DecodeStep::run_eagerly(const Tensor& tokens) {
  const Tensor logits = step_.forward(model_, tokens);
  step_.commit();
  return choose(logits);
}

void DecodeStep::begin_in_place(const Tensor& tokens) {
  token_ = tokens.clone();
  host_tokens_ = at::empty({capacity_ + 1, token_.size(0)}, token_.options().device(at::kCPU).pinned_memory(true));
  mapped_tokens_ = at::for_blob(host_tokens_.mutable_data_ptr(), host_tokens_.sizes())
                       .options(token_.options())
                       .target_device(token_.device())  // not that of the memory, which any of them may write to
                       .make_tensor();
}

// As it is captured: in memory that stays where it is.
void DecodeStep::run_in_place() {
  const Tensor logits = step_.forward(model_, token_);
  const auto& argmax = model_.lm_head().argmax();
  if (sampler_.is_argmax() && argmax) {  // one launch
    argmax(token_, logits, mapped_tokens_, step_.position());
    return;
  }
  if (sampler_.is_argmax()) {
    at::argmax_out(token_, logits, -1);
  } else {
    token_.copy_(choose(logits));
  }
  mapped_tokens_.index_copy_(0, step_.position(), token_.unsqueeze(0));
}

// A capture launches nothing: a step that cannot be captured runs as it is.
void DecodeStep::record() {
  kv_bucket_ = step_.kv_bucket();
  try {
    graph_->capture([&] { run_in_place(); });
  } catch (const c10::Error& error) {
    refuse(cat("a layer waits for the host in the middle of a step: ", error.what_without_backtrace()));
  }
}

Tensor DecodeStep::operator()(const Tensor& tokens) {
  if (graph_ == nullptr) return run_eagerly(tokens);
  if (!token_.defined()) {
    begin_in_place(tokens);
    graph_->warm_up([&] { run_in_place(); });
    step_.commit();
    return token_;
  }
  if (kv_bucket_ != step_.kv_bucket()) {
    if (kv_bucket_ > 0) graph_ = new_graph();
    record();
    if (graph_ == nullptr) return run_eagerly(tokens);
  }
  step_.commit();
  graph_->replay();
  return token_;
}

}  // namespace hotswap
