// Examples of rms_norm/1, add_rms_norm/1, layer_norm/1.
#include "hotswap/layers/norm.h"

#include <ATen/TensorOperators.h>

#include "hotswap/kernelize/example/example.h"

namespace hotswap::binding {
namespace {

constexpr double kEps = 1e-6;
const char* const kCasting = "llama";

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                        double offset, const std::string& casting) {
  const Tensor h = x + residual;
  return {stock::rms_norm(h, weight, eps, offset, casting), h};
}

// The stock norm takes its statistics in float32.
Tensor exact_rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset, const std::string&) {
  return x * (x.pow(2).mean(-1, /*keepdim=*/true) + eps).rsqrt() * (weight + offset);
}

Result<LayerExample> rms_norm_example(const std::string&, const ExampleSize& size) {
  return make_example<RmsNormForward>(
      stock::rms_norm, {random({size.rows, size.dim}), random({size.dim}), kEps, 0.0, kCasting}, exact_rms_norm);
}

Result<LayerExample> add_rms_norm_example(const std::string&, const ExampleSize& size) {
  const auto exact = [](const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, double offset,
                        const std::string& casting) {
    return std::tuple(exact_rms_norm(x + residual, weight, eps, offset, casting), x + residual);
  };
  return make_example<AddRmsNormForward>(
      add_rms_norm,
      {random({size.rows, size.dim}), random({size.rows, size.dim}), random({size.dim}), kEps, 0.0, kCasting}, exact);
}

Result<LayerExample> layer_norm_example(const std::string&, const ExampleSize& size) {
  return make_example<LayerNormForward>(stock::layer_norm,
                                        {random({size.rows, size.dim}), random({size.dim}), random({size.dim}), kEps});
}

}  // namespace

std::vector<ContractExample> norm_examples() {
  return {
      {"rms_norm/1", rms_norm_example}, {"add_rms_norm/1", add_rms_norm_example}, {"layer_norm/1", layer_norm_example}};
}

}  // namespace hotswap::binding
