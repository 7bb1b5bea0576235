// Examples of cross_entropy/1 and linear_cross_entropy/1.
#include "hotswap/layers/loss.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>

#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/kernelize/example/example.h"

namespace hotswap::binding {
namespace {

// The stock losses compute in float32.
Tensor exact_loss(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  return at::cross_entropy_loss(logits, target, {}, at::Reduction::Mean, o.ignore_index, 0.0);
}

struct Vocabulary {
  int64_t words;
  Tensor target;  // [rows]
};
Vocabulary vocabulary_of(const ExampleSize& size) {
  const int64_t words = size.out > 0 ? size.out : 8 * size.dim;
  return {words, at::randint(words, {size.rows}, at::TensorOptions().dtype(at::kLong))};
}

Result<LayerExample> cross_entropy_example(const std::string&, const ExampleSize& size) {
  const auto [words, target] = vocabulary_of(size);
  Values arguments = {random({size.rows, words}), target};
  push(arguments, CrossEntropyOptions());
  return make_example<CrossEntropyForward>(stock::cross_entropy, std::move(arguments), exact_loss);
}

Result<LayerExample> linear_cross_entropy_example(const std::string&, const ExampleSize& size) {
  const auto [words, target] = vocabulary_of(size);
  Values arguments = {random({size.rows, size.dim}), random({words, size.dim}), c10::IValue(), target};
  push(arguments, CrossEntropyOptions());
  arguments.resize(arguments.size() - 2);  // its schema has chunk_bytes before class_weight and token_scaling: defaults
  const auto exact = [](const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                        const Tensor& labels, const CrossEntropyOptions& options) {
    return exact_loss(at::linear(hidden, weight, bias), labels, options);
  };
  LayerExample example =
      make_example<LinearCrossEntropyForward>(stock::linear_cross_entropy, std::move(arguments), exact);
  example.shape = cat(size.rows, "x", size.dim, " @ ", size.dim, "x", words);
  example.flops = 2.0 * static_cast<double>(size.rows * size.dim * words);
  return example;
}

}  // namespace

std::vector<ContractExample> loss_examples() {
  constexpr ExampleSize small = {.rows = 128, .dim = 576, .out = 2048}, large = {.rows = 512, .dim = 576, .out = 49152};
  return {{"cross_entropy/1", cross_entropy_example, small, large},
          {"linear_cross_entropy/1", linear_cross_entropy_example, small, large}};
}

}  // namespace hotswap::binding
