#include "hotswap/layers/activation.h"

#include <ATen/ops/add.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/layers/whole_vectors.h"

namespace hotswap {
namespace {

// Each in the order of operations of transformers/activations.py: in bfloat16 every step rounds.
Tensor silu(const Tensor& x) { return row_silu(x); }
Tensor gelu(const Tensor& x) { return at::gelu(x); }
Tensor gelu_tanh(const Tensor& x) { return at::gelu(x, "tanh"); }

Tensor gelu_new(const Tensor& x) {
  const Tensor inner = at::mul(at::add(x, at::mul(at::pow(x, 3.0), 0.044715)), std::sqrt(2.0 / M_PI));
  return at::mul(at::mul(x, 0.5), at::add(at::tanh(inner), 1.0));
}

Tensor gelu_fast(const Tensor& x) {
  const Tensor inner = at::mul(at::mul(x, 0.7978845608), at::add(at::mul(at::mul(x, 0.044715), x), 1.0));
  return at::mul(at::mul(x, 0.5), at::add(at::tanh(inner), 1.0));
}

Tensor gelu_quick(const Tensor& x) { return at::mul(x, row_sigmoid(at::mul(x, 1.702))); }

Tensor relu_squared(const Tensor& x) { return at::pow(at::relu(x), 2.0); }

Tensor tanh(const Tensor& x) { return at::tanh(x); }

constexpr ActivationKind kActivationKinds[] = {
    {"silu", "SiLU", silu},
    {"swish", "SiLU", silu},
    {"gelu", "GeLU", gelu},
    {"gelu_pytorch_tanh", "GeluTanh", gelu_tanh},
    {"gelu_new", "NewGELU", gelu_new},
    {"gelu_fast", "FastGELU", gelu_fast},
    {"quick_gelu", "QuickGELU", gelu_quick},
    {"relu2", "ReLUSquared", relu_squared},
    {"tanh", "Tanh", tanh},
};

}  // namespace

const ActivationKind& activation_kind(const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const ActivationKind& kind : kActivationKinds) {
    if (name == kind.name) return kind;
    known.emplace_back(kind.name);
  }
  throw Error(
      {.kind = ErrorKind::kUnsupported,
       .wanted = cat("an activation that is implemented: ", join(known)),
       .got = cat(where, " = \"", name, '"'),
       .next =
           "run this model with transformers, or add the activation to hotswap/layers/activation.cpp and build again"});
}

Activation::Activation(const ActivationKind& kind) : forward_(this, kind.layer, "activation/1", kind.stock) {}

}  // namespace hotswap
