// Examples of activation/1, act_and_mul/1, gated_mlp/1.
#include "hotswap/layers/activation.h"

#include <ATen/TensorOperators.h>

#include "hotswap/kernelize/example/example.h"
#include "hotswap/layers/mlp.h"

namespace hotswap::binding {
namespace {

using Stock = Tensor (*)(const Tensor&);

// The contract does not define which function a layer computes; its name does.
Result<Stock> stock_of(const std::string& layer) {
  static const std::map<std::string, const char*> names = {{"Silu", "silu"},
                                                           {"Gelu", "gelu"},
                                                           {"SiLU", "silu"},
                                                           {"GeLU", "gelu"},
                                                           {"GeluTanh", "gelu_pytorch_tanh"},
                                                           {"NewGELU", "gelu_new"},
                                                           {"FastGELU", "gelu_fast"},
                                                           {"QuickGELU", "quick_gelu"},
                                                           {"ReLUSquared", "relu2"},
                                                           {"SiluAndMul", "silu"},
                                                           {"GeluAndMul", "gelu"},
                                                           {"GeluTanhAndMul", "gelu_pytorch_tanh"}};
  const auto found = names.find(layer);
  if (found == names.end()) return Reason{cat("no stock activation is known by the name ", layer)};
  return activation_kind(found->second, "an example").stock;
}

Result<LayerExample> activation_example(const std::string& layer, const ExampleSize& size) {
  const auto act = stock_of(layer);
  if (!act) return Reason{act.why()};
  return make_example<ActivationForward>(*act, {random({size.rows, size.dim})});
}

Result<LayerExample> act_and_mul_example(const std::string& layer, const ExampleSize& size) {
  const auto act = stock_of(layer);
  if (!act) return Reason{act.why()};
  const auto stock = [act = *act](const Tensor& x) {
    const auto halves = x.chunk(2, -1);
    return act(halves[0]) * halves[1];
  };
  return make_example<ActivationForward>(stock, {random({size.rows, 2 * size.dim})});
}

Result<LayerExample> gated_example(const std::string& layer, const ExampleSize& size) {
  static const std::map<std::string, const char*> names = {{"SwiGLUMLP", "silu"},
                                                           {"LigerSwiGLUMLP", "silu"},
                                                           {"GeGLUMLP", "gelu_pytorch_tanh"},
                                                           {"LigerGEGLUMLP", "gelu_pytorch_tanh"}};
  const auto found = names.find(layer);
  if (found == names.end()) return Reason{cat("no stock gated MLP is known by the name ", layer)};
  const auto act = activation_kind(found->second, "an example").stock;
  const auto stock = [act](const Tensor& gate, const Tensor& up) { return act(gate) * up; };
  return make_example<GatedForward>(stock, {random({size.rows, size.dim}), random({size.rows, size.dim})});
}

}  // namespace

std::vector<ContractExample> activation_examples() {
  return {{"activation/1", activation_example}, {"act_and_mul/1", act_and_mul_example}, {"gated_mlp/1", gated_example}};
}

}  // namespace hotswap::binding
