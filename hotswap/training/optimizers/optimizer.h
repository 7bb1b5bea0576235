// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019), as torch.optim.AdamW:
//   p *= 1 - lr * weight_decay;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// In which dtype m and v are kept, and what becomes of updates that a parameter of 16 bits cannot hold, is a choice:
// OptimizerStates. The update is a layer of its own (update()), whose slot may run a kernel.
//
//   AdamW optimizer(model.parameters(), {.learning_rate = 1e-3});
//   loss.backward();
//   const double norm = gradient_norm(optimizer.parameters());
//   optimizer.step(clip_factor(norm, 1.0));
//   optimizer.zero_grad();
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "hotswap/layers/module.h"

namespace hotswap {

using at::Tensor;

// Bytes a parameter of bfloat16 with its gradient and its states: 8, 16, 12, 8.
enum class OptimizerStates {
  kParameter,        // m and v in the parameter's dtype, rounded to nearest: what torch and transformers' Trainer keep
  kFloat32Master,    // in float32, with a float32 master of a parameter of 16 bits, which is its rounding
  kBFloat16Moments,  // in bfloat16, rounded stochastically, with that master
  kStochastic,       // in bfloat16, without a master: a bfloat16 parameter, too, is rounded stochastically
};
// "parameter", "float32_master", "bfloat16_moments", "stochastic"; Error for another name.
OptimizerStates optimizer_states_from(const std::string& name);

class AdamWUpdate;
struct AdamWLists;

struct AdamWOptions {
  double learning_rate = 5e-5;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  OptimizerStates states = OptimizerStates::kFloat32Master;
  int64_t seed = 0;  // of stochastic rounding
};

// Parameters with a weight decay of their own.
struct ParameterGroup {
  std::vector<Tensor> parameters = {};
  double weight_decay = 0;
};

// What the optimizer keeps of a parameter. Tensors are undefined before the first step; of a parameter that it does not
// own (keep_only) all but steps stay so.
struct AdamWState {
  Tensor average, average_square;  // in the parameter's shape
  Tensor steps;                    // [] float32
  Tensor master;                   // float32 copy of a parameter of 16 bits, or undefined
  double weight_decay = 0;
};

// Which of these a parameter has.
struct StateKinds {
  at::ScalarType moments;
  bool master;
};
StateKinds state_kinds(OptimizerStates states, at::ScalarType parameter);
// Bytes of a parameter's averages and master, without the 4 of its count of steps.
int64_t state_bytes_of(const Tensor& parameter, OptimizerStates states);

class AdamW {
 public:
  AdamW(std::vector<Tensor> parameters, AdamWOptions options);  // all with the options' weight decay
  AdamW(const std::vector<ParameterGroup>& groups, AdamWOptions options);
  ~AdamW();

  // One update of every parameter that has a gradient. Gradients count as gradient * gradient_factor: clipping costs no
  // pass over memory of its own (torch's fused update leaves them scaled).
  void step(double gradient_factor = 1.0);
  // The same where the norm of the gradients is on the device and the host does not wait for it: gradients are clipped
  // to max_norm (0: not at all), and where the norm is not finite nothing is updated. norm: [] float32.
  void step_clipped(const Tensor& norm, double max_norm);
  void zero_grad();  // drops the gradients, so that their memory is free until the next backward
  void set_learning_rate(double learning_rate) { options_.learning_rate = learning_rate; }

  // Of several ranks this one's share (ZeRO's stage 1): of the other parameters no averages and masters are kept, and
  // step() leaves them as they are but for their counts of steps. Random bits of stochastic rounding do not depend on
  // it. own: one for each parameter.
  void keep_only(std::vector<bool> own);
  bool owns(size_t index) const { return own_.empty() || own_[index]; }
  bool is_share() const { return !own_.empty(); }
  int64_t state_bytes() const;  // of all that is kept now

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::vector<AdamWState>& states() const { return states_; }  // one for each parameter
  std::vector<AdamWState>& states() { return states_; }
  // How many of the parameters, in their order, are of each group.
  const std::vector<size_t>& group_sizes() const { return group_sizes_; }
  const AdamWOptions& options() const { return options_; }
  // The layer that updates: kernelize(optimizer.update(), Mode::INFERENCE) has a kernel do it, where there is one.
  Module& update();

 private:
  void prepare(size_t index);
  void add_to(AdamWLists& list, size_t index) const;
  void update_all(const Tensor& scale);

  std::vector<Tensor> parameters_;
  std::vector<AdamWState> states_;
  std::vector<bool> own_;  // empty: all
  std::vector<size_t> group_sizes_;
  AdamWOptions options_;
  std::unique_ptr<AdamWUpdate> update_;
};

// L2 norm over all gradients, summed in float32 at least; 0 without any. NaN and infinity come through.
double gradient_norm(const std::vector<Tensor>& parameters);
// The same on the device, [] float32; undefined without any gradient.
Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters);

// What torch.nn.utils.clip_grad_norm_ multiplies gradients with: min(1, max_norm / (norm + 1e-6)); 1 when max_norm is
// 0.
double clip_factor(double norm, double max_norm);

// As torch's: scales the gradients in place, returns the norm before. AdamW::step(clip_factor(..)) saves this pass.
double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace hotswap
