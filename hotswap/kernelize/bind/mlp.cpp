// gated_mlp/1
#include "hotswap/layers/mlp.h"

#include <ATen/TensorOperators.h>

#include "hotswap/kernelize/bind/example.h"

namespace hotswap::binding {
namespace {

Result<Example> gated_example(const std::string& layer, const ExampleSize& size) {
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

std::vector<Contract> mlp_contracts() {
  return {{"gated_mlp/1",
           {{"forward", "(Tensor gate, Tensor up) -> Tensor y"},
            {"forward_train", "(Tensor gate, Tensor up) -> Tensor y"},
            {"backward", "(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)"},
            {"backward_inplace", "(Tensor dy, Tensor(a!) gate, Tensor(b!) up) -> ()"}},
           bind_regular<GatedForward>,
           gated_example}};
}

}  // namespace hotswap::binding
