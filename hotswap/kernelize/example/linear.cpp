// Examples of linear/1 and both versions of packed_linear.
#include "hotswap/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>

#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/kernelize/example/example.h"

namespace hotswap::binding {
namespace {

Result<LayerExample> linear_example(const std::string&, const ExampleSize& size) {
  const int64_t out = size.out > 0 ? size.out : size.dim;
  LayerExample example = make_example<LinearForward>(
      stock::linear, {random({size.rows, size.dim}), random({out, size.dim}), random({out})});
  example.shape = cat(size.rows, "x", size.dim, " @ ", size.dim, "x", out);
  example.flops = 2.0 * static_cast<double>(size.rows * size.dim * out);
  return example;
}

// Blocks of Q4_1 with any codes: of 20 bytes the first four are two halves.
Weight random_q4_1(int64_t out, int64_t dim) {
  const Tensor scales = (random({out, dim / 32, 2}) * 0.02).to(at::kHalf).view(at::kByte);
  const Tensor codes = at::randint(0, 256, {out, dim / 32, 16}, at::kByte);
  return {
      .format = WeightFormat::kQ4_1, .data = at::cat({scales, codes}, -1).view({out, -1}), .logical_shape = {out, dim}};
}

LayerExample packed_shape(LayerExample example, const ExampleSize& size, int64_t dim, int64_t out) {
  example.trained = 0;
  example.shape = cat(size.rows, "x", dim, " @ ", dim, "x", out, " Q4_1");
  example.flops = 2.0 * static_cast<double>(size.rows * dim * out);
  return example;
}

int64_t whole_blocks(int64_t dim) { return (dim + 31) / 32 * 32; }

Result<LayerExample> packed_example(const std::string&, const ExampleSize& size) {
  const int64_t dim = whole_blocks(size.dim), out = size.out > 0 ? size.out : dim;
  Values arguments = {random({size.rows, dim})};
  push(arguments, random_q4_1(out, dim));
  arguments.emplace_back(random({out}));
  return packed_shape(make_example<PackedLinearForward>(stock::packed_linear, std::move(arguments)), size, dim, out);
}

Result<LayerExample> blocks_example(const std::string&, const ExampleSize& size) {
  const int64_t dim = whole_blocks(size.dim), out = size.out > 0 ? size.out : dim;
  const auto stock = [](const Tensor& x, const Tensor& blocks, const std::optional<Tensor>& bias) {
    return stock::packed_linear(x, weight_of(blocks, x.size(-1)), bias);
  };
  LayerExample example =
      make_example<LinearForward>(stock, {random({size.rows, dim}), random_q4_1(out, dim).data, random({out})});
  example.bound = [stock](const LayerOps& layer) -> ExampleForward {
    const auto module = std::make_shared<BoundLayer<PackedLinearForward>>(layer, stock::packed_linear);
    return [module](const Values& v) {
      size_t next = 0;
      Tensor x, blocks;
      std::optional<Tensor> bias;
      take(v, next, x);
      take(v, next, blocks);
      take(v, next, bias);
      return Tensors{module->slot(x, weight_of(blocks, x.size(-1)), bias)};
    };
  };
  return packed_shape(std::move(example), size, dim, out);
}

}  // namespace

std::vector<ContractExample> linear_examples() {
  constexpr ExampleSize small = {.rows = 1, .dim = 576}, large = {.rows = 1, .dim = 8192};
  return {{"linear/1", linear_example, small, large},
          {"packed_linear/2", packed_example, small, large},
          {"packed_linear/1", blocks_example, small, large}};
}

}  // namespace hotswap::binding
