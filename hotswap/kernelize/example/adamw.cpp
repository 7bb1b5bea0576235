// The example of adamw/1: one tensor's third update, of copies, since the forward is in-place.
#include "hotswap/layers/adamw.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "hotswap/kernelize/example/example.h"

namespace hotswap::binding {
namespace {

Tensors updated(const Values& values, const std::function<AdamWForward>& forward) {
  const auto copy = [&](size_t i) { return std::vector{values[i].toTensor().clone()}; };
  const AdamWLists lists{.parameters = copy(0),
                         .gradients = copy(1),
                         .averages = copy(2),
                         .average_squares = copy(3),
                         .masters = {},
                         .steps = {at::full({}, 3, values[0].toTensor().options().dtype(at::kFloat))}};
  const Tensor scale = at::ones({}, lists.steps[0].options());
  forward(scale, lists, {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1}, {});
  return {lists.parameters[0], lists.averages[0], lists.average_squares[0]};
}

Result<LayerExample> adamw_example(const std::string&, const ExampleSize& size) {
  const auto random_tensor = [&] { return random({size.rows, size.dim}); };
  LayerExample example;
  example.arguments = {random_tensor(), random_tensor(), random_tensor(), random_tensor().square()};
  example.shape = join(example.arguments[0].toTensor().sizes(), "x");
  example.stock = [](const Values& values) { return updated(values, stock::adamw); };
  example.exact = example.stock;
  example.bound = [](const LayerOps& layer) -> ExampleForward {
    const auto module = std::make_shared<BoundLayer<AdamWForward>>(layer, stock::adamw);
    return
        [module](const Values& values) { return updated(values, [&](const auto&... each) { module->slot(each...); }); };
  };
  return example;
}

}  // namespace

std::vector<ContractExample> adamw_examples() { return {{"adamw/1", adamw_example}}; }

}  // namespace hotswap::binding
