#include "hotswap/cli/bench/layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "hotswap/kernelize/bind/bound_layer.h"
#include "hotswap/layers/activation.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/loss.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rotary.h"

namespace hotswap {
namespace {

using Tensors = std::vector<Tensor>;

constexpr double kEps = 1e-6;
constexpr int64_t kHeadDim = 64;

Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::TensorOptions().dtype(at::kDouble)); }

// call(forward, inputs): the contract's arguments out of the inputs. The reference is the stock forward in float64,
// unless that computes in float32 whatever it is given.
template <typename Signature, typename Call>
LayerCase contract_case(const PackageLayer& layer, const typename Slot<Signature>::Forward& stock, const Call& call,
                        Tensors inputs) {
  const auto bound = std::make_shared<BoundLayer<Signature>>(layer, stock);
  LayerCase result;
  result.trained = inputs.size();
  result.inputs = std::move(inputs);
  result.stock = [stock, call](const Tensors& in) -> Tensors { return call(stock, in); };
  result.kernel = [bound, call](const Tensors& in) -> Tensors { return call(bound->slot, in); };
  result.reference = result.stock;
  return result;
}

Tensor exact_rms_norm(const Tensor& x, const Tensor& weight) {
  return x * (x.pow(2).mean(-1, /*keepdim=*/true) + kEps).rsqrt() * weight;
}

LayerCase norm_case(const PackageLayer& layer, const LayerSize& size) {
  const Tensor x = random({size.rows, size.dim}), weight = random({size.dim});
  if (layer.contract().name == "layer_norm/1") {
    return contract_case<LayerNormForward>(
        layer, stock::layer_norm,
        [](const auto& f, const Tensors& in) { return Tensors{f(in[0], in[1], in[2], kEps)}; },
        {x, weight, random({size.dim})});
  }
  LayerCase result;
  if (layer.contract().name == "add_rms_norm/1") {
    const auto stock = [](const Tensor& a, const Tensor& b, const Tensor& w, double eps, double offset,
                          const std::string& casting) {
      const Tensor h = a + b;
      return std::tuple(stock::rms_norm(h, w, eps, offset, casting), h);
    };
    const auto call = [](const auto& f, const Tensors& in) {
      auto [y, h] = f(in[0], in[1], in[2], kEps, 0.0, "llama");
      return Tensors{y, h};
    };
    result = contract_case<AddRmsNormForward>(layer, stock, call, {x, random({size.rows, size.dim}), weight});
    result.reference = [](const Tensors& in) -> Tensors {
      return {exact_rms_norm(in[0] + in[1], in[2]), in[0] + in[1]};
    };
    return result;
  }
  const auto call = [](const auto& f, const Tensors& in) { return Tensors{f(in[0], in[1], kEps, 0.0, "llama")}; };
  result = contract_case<RmsNormForward>(layer, stock::rms_norm, call, {x, weight});
  result.reference = [](const Tensors& in) -> Tensors { return {exact_rms_norm(in[0], in[1])}; };
  return result;
}

// The activation's name in transformers, by the layer's; empty: not known here.
std::string activation_of(const std::string& layer) {
  static const std::map<std::string, std::string> names = {{"SiLU", "silu"},
                                                           {"Silu", "silu"},
                                                           {"GeLU", "gelu"},
                                                           {"Gelu", "gelu"},
                                                           {"GeluTanh", "gelu_pytorch_tanh"},
                                                           {"NewGELU", "gelu_new"},
                                                           {"FastGELU", "gelu_fast"},
                                                           {"QuickGELU", "quick_gelu"},
                                                           {"SiluAndMul", "silu"},
                                                           {"GeluAndMul", "gelu"},
                                                           {"GeluTanhAndMul", "gelu_pytorch_tanh"},
                                                           {"SwiGLUMLP", "silu"},
                                                           {"LigerSwiGLUMLP", "silu"},
                                                           {"GeGLUMLP", "gelu_pytorch_tanh"},
                                                           {"LigerGEGLUMLP", "gelu_pytorch_tanh"}};
  const auto found = names.find(layer);
  return found == names.end() ? "" : found->second;
}

Result<LayerCase> activation_case(const PackageLayer& layer, const LayerSize& size) {
  const std::string name = activation_of(layer.name()), contract = layer.contract().name;
  if (name.empty())
    return Reason{cat("no stock layer is called ", layer.name(), ", and ", contract, " says not which function it is")};
  const auto act = activation_kind(name, "kernel bench").stock;
  const auto unary = [](const auto& f, const Tensors& in) { return Tensors{f(in[0])}; };
  if (contract == "activation/1") {
    return contract_case<ActivationForward>(layer, act, unary, {random({size.rows, size.dim})});
  }
  if (contract == "act_and_mul/1") {
    const auto stock = [act](const Tensor& x) {
      const auto parts = x.chunk(2, -1);
      return act(parts[0]) * parts[1];
    };
    return contract_case<ActivationForward>(layer, stock, unary, {random({size.rows, 2 * size.dim})});
  }
  const auto stock = [act](const Tensor& gate, const Tensor& up) { return act(gate) * up; };
  return contract_case<GatedForward>(layer, stock,
                                     [](const auto& f, const Tensors& in) { return Tensors{f(in[0], in[1])}; },
                                     {random({size.rows, size.dim}), random({size.rows, size.dim})});
}

LayerCase rotary_case(const PackageLayer& layer, const LayerSize& size) {
  const int64_t heads = std::max<int64_t>(1, size.dim / kHeadDim);
  const Tensor angle = random({1, size.rows, kHeadDim / 2}), angles = at::cat({angle, angle}, -1);
  LayerCase result = contract_case<RotaryForward>(
      layer, stock::rotary,
      [](const auto& f, const Tensors& in) {
        auto [q, k] = f(in[0], in[1], in[2], in[3], kHeadDim, false);
        return Tensors{q, k};
      },
      {random({1, heads, size.rows, kHeadDim}), random({1, heads, size.rows, kHeadDim}), angles.cos(), angles.sin()});
  result.trained = 2;
  return result;
}

LayerCase loss_case(const PackageLayer& layer, const LayerSize& size) {
  const int64_t vocab = 8 * size.dim;
  const Tensor target = at::randint(vocab, {size.rows}, at::TensorOptions().dtype(at::kLong));
  const auto exact = [](const Tensor& logits, const Tensor& labels) {
    return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean, -100, 0.0);
  };
  LayerCase result;
  if (layer.contract().name == "cross_entropy/1") {
    result = contract_case<CrossEntropyForward>(
        layer, stock::cross_entropy,
        [](const auto& f, const Tensors& in) { return Tensors{f(in[0], in[1], CrossEntropyOptions())}; },
        {random({size.rows, vocab}), target});
    result.reference = [exact](const Tensors& in) -> Tensors { return {exact(in[0], in[1])}; };
    result.trained = 1;
    return result;
  }
  result = contract_case<LinearCrossEntropyForward>(
      layer, stock::linear_cross_entropy,
      [](const auto& f, const Tensors& in) {
        return Tensors{f(in[0], in[1], std::nullopt, in[2], CrossEntropyOptions())};
      },
      {random({size.rows, size.dim}), random({vocab, size.dim}), target});
  result.reference = [exact](const Tensors& in) -> Tensors { return {exact(at::linear(in[0], in[1]), in[2])}; };
  result.trained = 2;
  return result;
}

Result<LayerCase> case_of(const PackageLayer& layer, const LayerSize& size) {
  const std::string& contract = layer.contract().name;
  if (contract.find("norm/") != contract.npos) return norm_case(layer, size);
  if (contract == "rotary/1") return rotary_case(layer, size);
  if (contract.find("cross_entropy/") != contract.npos) return loss_case(layer, size);
  if (contract == "linear/1") {
    return contract_case<LinearForward>(
        layer, stock::linear, [](const auto& f, const Tensors& in) { return Tensors{f(in[0], in[1], in[2])}; },
        {random({size.rows, size.dim}), random({size.dim, size.dim}), random({size.dim})});
  }
  if (contract == "activation/1" || contract == "act_and_mul/1" || contract == "gated_mlp/1") {
    return activation_case(layer, size);
  }
  return Reason{cat("the contract ", contract, " has no case here")};
}

}  // namespace

Result<LayerCase> make_layer_case(const PackageLayer& layer, const LayerSize& size) {
  auto result = case_of(layer, size);
  if (result) result->shape = join(result->inputs[0].sizes(), "x");
  return result;
}

}  // namespace hotswap
