#include "hotswap/generation/decode_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include "hotswap/base/log.h"

namespace hotswap {

DecodeStep::DecodeStep(CausalLM& model, Cache& cache, Tensor mask, const Tensor& positions)
    : model_(model), cache_(cache), mask_(std::move(mask)) {
  if (positions.defined()) positions_ = positions.narrow(1, positions.size(1) - 1, 1).clone();
}

void DecodeStep::capture() {
  auto graph = make_cuda_graph();
  if (!graph) return refuse(graph.why());
  graph_ = std::move(*graph);
  why_not_ = "there was no second step";
}

void DecodeStep::refuse(std::string why) {
  log_warning("decode steps are not captured in a CUDA graph: ", why);
  why_not_ = std::move(why);
  graph_ = nullptr;
  reach_ = 0;
}

Tensor DecodeStep::forward(const Tensor& tokens) {
  return model_({.input_ids = tokens,
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

// A step that cannot be captured runs as it is: the cache counts as before, because a capture launches nothing.
void DecodeStep::record() {
  const int64_t seen = cache_.length();
  reach_ = cache_.reach(1);
  try {
    graph_->capture([&] { logits_ = forward(token_); });
  } catch (const c10::Error& error) {
    cache_.crop(seen);
    refuse(error.what_without_backtrace());
  }
}

Tensor DecodeStep::operator()(const Tensor& tokens) {
  move_on();
  if (graph_ == nullptr) return forward(tokens);
  if (!begun_) {
    begun_ = true;
    token_ = tokens.clone();
    graph_->warm_up([&] { logits_ = forward(token_); });
    return logits_;
  }
  token_.copy_(tokens);
  if (reach_ == cache_.reach(1)) {
    cache_.replayed(1);
  } else {
    if (reach_ > 0) graph_ = std::move(*make_cuda_graph());
    record();
    if (graph_ == nullptr) return forward(token_);
  }
  graph_->replay();
  return logits_;
}

}  // namespace hotswap
