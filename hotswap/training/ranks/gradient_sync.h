// Gradients of ranks as one: after a backward with sync each rank has the mean over the ranks of what their backwards
// have added up since the last one. Weights then stay equal, since each rank makes the same update.
//
//   sync->before_forward(last);
//   const Tensor loss = forward();
//   sync->before_backward(loss, last);
//   loss.backward();
//   sync->after_backward(last);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace hotswap {

using at::Tensor;

class GradientSync {
 public:
  virtual ~GradientSync() = default;
  virtual void before_forward(bool sync) = 0;
  virtual void before_backward(const Tensor& loss, bool sync) = 0;
  // Error that names parameters which got no gradient: other ranks would wait for theirs.
  virtual void after_backward(bool sync) = 0;
};

// What is trained: each tensor once, with its name, in the order of the model.
struct TrainedTensors {
  std::vector<Tensor> tensors;
  std::vector<std::string> names;
};

struct GradientSyncOptions {
  int64_t bucket_mib = 25;              // gradients are reduced in pieces of this size, while backward still runs
  bool find_unused_parameters = false;  // some get no gradient in a step; costs a walk over the graph
};

}  // namespace hotswap
