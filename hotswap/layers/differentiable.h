// A computation with a backward of its own: one node of the autograd graph, whatever it computes. Each class derived from
// torch::autograd::Function instead takes the compiler a second.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace hotswap {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct ForwardResult {
  Tensors outputs;
  Tensors saved;  // what backward reads, for as long as the graph needs it: inputs, outputs and others; or undefined
};

struct BackwardCall {
  Tensors gradients;  // of the outputs
  Tensors saved;
  std::vector<bool> needs;  // which inputs need a gradient
};
using BackwardFunction = std::function<Tensors(BackwardCall& call)>;  // the gradient of each input, or undefined

// What an output has no gradient of: zeros, or an undefined tensor.
enum class MissingGradients { kZeros, kUndefined };

// inputs: all that may need a gradient, or undefined. forward runs at once, without gradients; backward once for each
// walk through the graph. The outputs.
Tensors differentiable(const Tensors& inputs, const std::function<ForwardResult()>& forward, BackwardFunction backward,
                       MissingGradients missing = MissingGradients::kZeros);

}  // namespace hotswap
