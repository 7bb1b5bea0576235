#include "hotswap/models/trained.h"

#include <set>

#include "hotswap/base/error.h"
#include "hotswap/layers/linear.h"

namespace hotswap {

void each_trained(Module& module, const Module::TensorVisitor& visit) {
  module.each_parameter([&](const std::string& name, Tensor& tensor) {
    if (tensor.requires_grad()) visit(name, tensor);
  });
  std::set<const void*> seen;  // A of several layers is one
  module.each_module([&](const std::string& name, Module& layer) {
    const auto visit_new = [&](const std::string& end, Tensor& tensor) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) visit(cat(name, name.empty() ? "" : ".", end), tensor);
    };
    if (auto* linear = dynamic_cast<Linear*>(&layer)) linear->each_adapter_tensor(visit_new);
    if (auto* embedding = dynamic_cast<Embedding*>(&layer)) embedding->each_adapter_tensor(visit_new);
  });
}

}  // namespace hotswap
