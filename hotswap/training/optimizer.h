// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019), as torch.optim.AdamW:
//   p *= 1 - lr * weight_decay;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// m and v are float32. A parameter of another dtype (bfloat16) has a float32 master copy that is updated and rounded
// into it, so that small updates are not lost.
//
//   AdamW optimizer(model.parameters(), {.learning_rate = 1e-3});
//   loss.backward();
//   const double norm = gradient_norm(optimizer.parameters());
//   optimizer.step(clip_factor(norm, 1.0));
//   optimizer.zero_grad();
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hotswap {

using at::Tensor;

struct AdamWOptions {
  double learning_rate = 5e-5;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

// Parameters with a weight decay of their own.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;
};

class AdamW {
 public:
  AdamW(std::vector<Tensor> parameters, AdamWOptions options);  // all with the options' weight decay
  AdamW(const std::vector<ParameterGroup>& groups, AdamWOptions options);

  // One update of every parameter that has a gradient. Gradients count as gradient * gradient_factor: clipping costs no
  // pass over memory of its own (the fused update may leave them scaled).
  void step(double gradient_factor = 1.0);
  void zero_grad();  // drops the gradients, so that their memory is free until the next backward
  void set_learning_rate(double learning_rate) { options_.learning_rate = learning_rate; }

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const AdamWOptions& options() const { return options_; }

 private:
  struct State {
    Tensor average, average_square, steps;  // as the parameter, float32; steps: []
    Tensor master;                          // float32 copy of a parameter of another dtype, else undefined
    double weight_decay = 0;
  };
  void update(const Tensor& parameter, const Tensor& gradient, State& state, const Tensor& inverse_factor);

  std::vector<Tensor> parameters_;
  std::vector<State> states_;  // tensors: filled by the first step
  AdamWOptions options_;
};

// L2 norm over all gradients together, summed in float32 at least; 0 without any. NaN and infinity come through.
double gradient_norm(const std::vector<Tensor>& parameters);

// What torch.nn.utils.clip_grad_norm_ multiplies gradients with: min(1, max_norm / (norm + 1e-6)); 1 when max_norm is
// 0.
double clip_factor(double norm, double max_norm);

// As torch's: scales the gradients in place, returns the norm before. AdamW::step(clip_factor(..)) saves this pass.
double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace hotswap
