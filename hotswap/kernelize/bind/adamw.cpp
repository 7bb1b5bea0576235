// adamw/1
#include "hotswap/layers/adamw.h"

#include "hotswap/kernelize/bind/bind_impl.h"

namespace hotswap::binding {
namespace {

using List = at::TensorList;

void bind_adamw(SlotBase& slot, const LayerOps& layer) {
  const auto op = *typed_op<void(const Tensor&, List, List, List, List, List, List, double, double, double, double,
                                 double, std::optional<int64_t>)>(layer, "forward");
  bind_slot<AdamWForward>(slot, [op](const Tensor& scale, const AdamWLists& lists, const AdamWRates& rates,
                                     std::optional<int64_t> seed) {
    below_autograd(op, scale, lists.parameters, lists.gradients, lists.averages, lists.average_squares, lists.masters,
                   lists.steps, rates.learning_rate, rates.beta1, rates.beta2, rates.eps, rates.weight_decay, seed);
  });
}

}  // namespace

std::vector<Contract> adamw_contracts() {
  return {{.name = "adamw/1",
           .roles = {{"forward",
                      "(Tensor scale, Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] averages, "
                      "Tensor(c!)[] average_squares, Tensor(d!)[] masters, Tensor[] steps, float learning_rate, "
                      "float beta1, float beta2, float eps, float weight_decay, int? seed) -> ()"}},
           .bind = bind_adamw}};
}

}  // namespace hotswap::binding
