#include "hotswap/layers/differentiable.h"

#include <torch/csrc/autograd/custom_function.h>

namespace hotswap {
namespace {

using torch::autograd::AutogradContext;

struct KeptBackward : torch::CustomClassHolder {
  BackwardFunction function;
  std::vector<bool> defined;  // of the inputs
};

struct Node : torch::autograd::Function<Node> {
  static Tensors forward(AutogradContext* ctx, at::TensorList /*inputs*/, const std::function<ForwardResult()>& forward,
                         const c10::intrusive_ptr<KeptBackward>& backward, MissingGradients missing) {
    ctx->set_materialize_grads(missing == MissingGradients::kZeros);
    ForwardResult result = forward();
    ctx->save_for_backward(std::move(result.saved));
    ctx->saved_data["backward"] = c10::IValue::make_capsule(backward);
    return std::move(result.outputs);
  }

  static Tensors backward(AutogradContext* ctx, const Tensors& gradients) {
    const auto kept = c10::static_intrusive_pointer_cast<KeptBackward>(ctx->saved_data.at("backward").toCapsule());
    BackwardCall call{.gradients = gradients, .saved = ctx->get_saved_variables()};
    size_t seen = 0;
    for (const bool is_defined : kept->defined) call.needs.push_back(is_defined && ctx->needs_input_grad(seen++));
    const Tensors made = kept->function(call);
    Tensors result;
    for (size_t i = 0; i < made.size(); ++i) {
      if (kept->defined[i]) result.push_back(made[i]);
    }
    result.resize(result.size() + 3);  // of the arguments of forward that are no tensors
    return result;
  }
};

}  // namespace

Tensors differentiable(const Tensors& inputs, const std::function<ForwardResult()>& forward, BackwardFunction backward,
                       MissingGradients missing) {
  const auto kept = c10::make_intrusive<KeptBackward>();
  kept->function = std::move(backward);
  Tensors defined;  // torch takes no others
  for (const Tensor& input : inputs) {
    kept->defined.push_back(input.defined());
    if (input.defined()) defined.push_back(input);
  }
  return Node::apply(at::TensorList(defined), forward, kept, missing);
}

}  // namespace hotswap
