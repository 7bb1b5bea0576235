// One new token of each row: the forward, and the sampler's choice. On a GPU with a cache of a fixed size the launches
// of a step are captured into a CUDA graph and replayed: a step of a small model is hundreds of launches, whose cost on
// the host is most of its time. A captured step asks the device for nothing, so that the host may run ahead of it.
#pragma once

#include <memory>
#include <string>

#include "hotswap/engine/cuda_graph.h"
#include "hotswap/engine/sampler.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

struct DecodeInput {
  Tensor mask;  // [batch, tokens so far], in a cache of a fixed size [batch, capacity]; undefined: no row is padded
  Tensor positions;  // of the tokens so far: [batch, time]; undefined as the mask
  Tensor prompt;     // [batch, time]
};

class DecodeStep {
 public:
  DecodeStep(CausalLM& model, Cache& cache, Sampler& sampler, DecodeInput input);
  void capture(int64_t max_tokens);  // from the second step on, of at most so many; warns where that cannot be

  Tensor begin(const Tensor& logits);       // of the prompt: [batch, vocab] -> the first tokens, [batch]
  Tensor operator()(const Tensor& tokens);  // the last tokens -> the next, [batch]; the next call may write over them

  // The host's memory where the last call's tokens are once the device has made them: [batch]; undefined: nowhere.
  Tensor here() const { return host_tokens_.defined() ? host_tokens_.select(0, cache_.length()) : Tensor(); }

  bool captures() const { return graph_ != nullptr; }
  bool captured() const { return reach_ > 0; }
  const std::string& why_not_captured() const { return why_not_; }

 private:
  Tensor forward(const Tensor& tokens);  // -> logits, [batch, vocab]
  Tensor choose(const Tensor& logits);
  void move_on();
  std::unique_ptr<CudaGraph> new_graph() const;
  void record();
  void run();
  void refuse(std::string why);

  CausalLM& model_;
  Cache& cache_;
  Sampler& sampler_;
  Tensor mask_, positions_;
  Tensor history_;         // [batch, time], where the sampler wants it; captured [batch, all that may come]
  Tensor history_length_;  // captured: [1] int64, tokens in the history
  bool begun_ = false;
  std::unique_ptr<CudaGraph> graph_;
  std::string why_not_ = "not asked for";
  Tensor token_;  // of the graph: [batch], the last tokens before a replay and the next ones after it
  // Captured: [capacity + 1, batch] int64 in the host's memory, and the same memory as the device writes it: in row
  // `length` the tokens of the step after which the cache has that length. A copy between two graphs would keep the
  // device waiting.
  Tensor host_tokens_, mapped_tokens_;
  int64_t reach_ = 0;  // that it was captured for; 0: it was not
};

}  // namespace hotswap
