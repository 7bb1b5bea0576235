// deformable_attention/1
#include "hotswap/layers/deformable.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include "hotswap/kernelize/bind/example.h"

namespace hotswap::binding {
namespace {

// size.rows queries over two levels, the larger about as large; places all over them, and a little beyond.
Result<Example> deformable_example(const std::string&, const ExampleSize& size) {
  constexpr int64_t kPoints = 4, kLevels = 2;
  const int64_t heads = size.dim % 8 == 0 ? 8 : 1;
  int64_t side = 2;
  while (side * side < size.rows) side += 2;
  const int64_t half = side / 2;
  const Tensor shapes = at::tensor({side, side, half, half}, at::kLong).view({kLevels, 2});
  const Tensor starts = at::tensor({int64_t{0}, side * side}, at::kLong);
  const Tensor places = at::rand({1, size.rows, heads, kLevels, kPoints, 2}, at::kFloat) * 1.2 - 0.1;
  const Tensor weights = at::softmax(random({1, size.rows, heads, kLevels * kPoints}), -1);
  Example example = make_example<DeformableForward>(
      stock::deformable_attention, {random({1, side * side + half * half, heads, size.dim / heads}), shapes, starts,
                                    places, weights.view({1, size.rows, heads, kLevels, kPoints})});
  example.shape = cat(size.rows, "x", heads, "x", size.dim / heads, ", 2 levels of 4 points");
  return example;
}

}  // namespace

std::vector<Contract> deformable_contracts() {
  const std::string inputs =
      "Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_locations, Tensor "
      "attention_weights)";
  return {{"deformable_attention/1",
           {{"forward", "(" + inputs + " -> Tensor y"},
            {"forward_train", "(" + inputs + " -> Tensor y"},
            {"backward",
             "(Tensor dy, " + inputs + " -> (Tensor dvalue, Tensor dsampling_locations, Tensor dattention_weights)"}},
           bind_regular<DeformableForward>,
           deformable_example,
           {.rows = 64, .dim = 256},
           {.rows = 4096, .dim = 256}}};
}

}  // namespace hotswap::binding
