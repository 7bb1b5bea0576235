// The forward of one new token of each row. On a GPU with a cache of a fixed size the launches of a step are captured
// into a CUDA graph and replayed: a step of a small model is hundreds of launches, whose cost on the host is most of
// its time.
#pragma once

#include <memory>
#include <string>

#include "hotswap/generation/cuda_graph.h"
#include "hotswap/models/causal_lm.h"

namespace hotswap {

class DecodeStep {
 public:
  // mask: [batch, tokens so far], in a cache of a fixed size [batch, capacity]; positions: of the tokens so far,
  // [batch, time]; both undefined where no row is padded.
  DecodeStep(CausalLM& model, Cache& cache, Tensor mask, const Tensor& positions);
  void capture();  // from the second step on; warns where that cannot be

  // tokens: [batch, 1] -> logits [batch, vocab], which the next call may write over
  Tensor operator()(const Tensor& tokens);

  bool captured() const { return reach_ > 0; }
  const std::string& why_not_captured() const { return why_not_; }

 private:
  Tensor forward(const Tensor& tokens);
  void move_on();
  void record();
  void refuse(std::string why);

  CausalLM& model_;
  Cache& cache_;
  Tensor mask_, positions_;
  bool begun_ = false;
  std::unique_ptr<CudaGraph> graph_;
  std::string why_not_ = "not asked for";
  Tensor token_, logits_;  // of the graph
  int64_t reach_ = 0;      // that it was captured for; 0: it was not
};

}  // namespace hotswap
