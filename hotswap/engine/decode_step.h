// One new token of each sequence of a pool, all of one length: the forward, and the sampler's choice. On a GPU the
// launches of a step are captured into a CUDA graph and replayed: a step of a small model is hundreds of launches,
// whose cost on the host is most of its time. A captured step asks the device for nothing, so that the host may run
// ahead of it.
#pragma once

#include <memory>
#include <string>

#include "hotswap/engine/cuda_graph.h"
#include "hotswap/engine/sampler.h"
#include "hotswap/engine/uniform_step.h"

namespace hotswap {

class DecodeStep {
 public:
  // capacity: see UniformStep. prompt: [batch, time], the sequences' tokens by row of the pool, which have run.
  DecodeStep(CausalLM& model, KvPool& pool, int64_t capacity, Sampler& sampler, Tensor prompt);
  void capture(int64_t max_tokens);  // from the second step on, of at most this many; warns where that cannot be

  Tensor begin(const Tensor& logits);       // of the prompt: [batch, vocab] -> the first tokens, [batch]
  Tensor operator()(const Tensor& tokens);  // the last tokens -> the next, [batch]; the next call may write over them

  // The host's memory where the last call's tokens are once the device has made them: [batch]; undefined: nowhere.
  Tensor here() const { return host_tokens_.defined() ? host_tokens_.select(0, step_.length()) : Tensor(); }

  bool captures() const { return graph_ != nullptr; }
  bool captured() const { return kv_bucket_ > 0; }
  const std::string& why_not_captured() const { return why_not_; }

 private:
  Tensor choose(const Tensor& logits);
  Tensor run_eagerly(const Tensor& tokens);
  std::unique_ptr<CudaGraph> new_graph() const;
  void begin_in_place(const Tensor& tokens);
  void run_in_place();
  void record();
  void refuse(std::string why);

  CausalLM& model_;
  Sampler& sampler_;
  UniformStep step_;
  Tensor history_;         // [batch, time], where the sampler needs it; captured [batch, all that may come]
  Tensor history_length_;  // captured: [1] int64, tokens in the history
  std::unique_ptr<CudaGraph> graph_;
  std::string why_not_ = "not requested";
  Tensor token_;  // of the graph: [batch], the last tokens before a replay and the next ones after it
  // Captured: [capacity + 1, batch] int64 in the host's memory, and the same memory as the device writes it: in row n
  // the tokens of the step after which sequences have the length n. A copy between two graphs would keep the device
  // waiting.
  Tensor host_tokens_, mapped_tokens_;
  int64_t capacity_, kv_bucket_ = 0;  // that it was captured for; 0: it was not
};

}  // namespace hotswap
