// linear/1, packed_linear/1. A Linear that claims torch_products trains by torch's own products: a node of several
// projections may make them in its place.
#include "hotswap/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/bind/example.h"

namespace hotswap::binding {
namespace {

Result<Example> linear_example(const std::string&, const ExampleSize& size) {
  const int64_t out = size.out > 0 ? size.out : size.dim;
  Example example = make_example<LinearForward>(
      stock::linear, {random({size.rows, size.dim}), random({out, size.dim}), random({out})});
  example.shape = cat(size.rows, "x", size.dim, " @ ", size.dim, "x", out);
  example.flops = 2.0 * static_cast<double>(size.rows * size.dim * out);
  return example;
}

// Blocks of Q4_1 with any numbers: of 20 bytes the first four are two halves.
Result<Example> packed_example(const std::string&, const ExampleSize& size) {
  const int64_t dim = (size.dim + 31) / 32 * 32, out = size.out > 0 ? size.out : dim;
  const Tensor scales = (random({out, dim / 32, 2}) * 0.02).to(at::kHalf).view(at::kByte);
  const Tensor numbers = at::randint(0, 256, {out, dim / 32, 16}, at::kByte);
  Example example = make_example<PackedLinearForward>(
      stock::packed_linear, {random({size.rows, dim}), at::cat({scales, numbers}, -1).view({out, -1}), random({out})});
  example.trained = 0;
  example.shape = cat(size.rows, "x", dim, " @ ", dim, "x", out, " Q4_1");
  example.flops = 2.0 * static_cast<double>(size.rows * dim * out);
  return example;
}

void bind_linear(SlotBase& slot, const LayerOps& layer) {
  bind_regular<LinearForward>(slot, layer);
  auto* linear = dynamic_cast<LinearSlot*>(&slot);
  if (linear == nullptr) return;
  linear->torch_products = layer.claims("torch_products");
  if (const auto op =
          typed_op<void(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&)>(layer, "largest")) {
    linear->largest = [op = *op](const Choice& to, const Tensor& x) {
      below_autograd(op, to.place, x, given(to.said), given(to.at));
    };
  }
}

}  // namespace

std::vector<Contract> linear_contracts() {
  return {{"linear/1",
           {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"forward_train", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"backward",
             "(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"},
            {"largest", "(Tensor(a!) place, Tensor x, Tensor(b!)? said=None, Tensor? at=None) -> ()"}},
           bind_linear,
           linear_example,
           {.rows = 1, .dim = 576},
           {.rows = 1, .dim = 8192},
           {"torch_products"}},
          {"packed_linear/1",
           {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"}},
           bind_regular<PackedLinearForward>,
           packed_example,
           {.rows = 1, .dim = 576},
           {.rows = 1, .dim = 8192}}};
}

}  // namespace hotswap::binding
