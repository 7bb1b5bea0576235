// Activations by their name in a config ("hidden_act"), formulas and rounding as transformers' ACT2FN.
#pragma once

#include <memory>

#include "hotswap/layers/slot.h"

namespace hotswap {

// activation/1, elementwise; act_and_mul/1: [..., 2 * dim] -> [..., dim]
using ActivationForward = Tensor(const Tensor& x);

struct ActivationKind {
  const char* name;   // "gelu_pytorch_tanh"
  const char* layer;  // "GeluTanh", the name in a kernel mapping
  Tensor (*stock)(const Tensor& x);
};

// Error naming the known ones when `name` is none of them; `where` says whose value it was.
const ActivationKind& activation_kind(const std::string& name, const std::string& where);

class Activation : public Module {
 public:
  explicit Activation(const ActivationKind& kind);
  Tensor forward(const Tensor& x) const { return forward_(x); }  // elementwise

 private:
  Slot<ActivationForward> forward_;
};

}  // namespace hotswap
