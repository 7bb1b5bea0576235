#include "hotswap/cli/bench/cases.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/layers/activation.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rotary.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Peer = std::function<Tensors()>;

constexpr double kEps = 1e-6;

struct Shape {
  int64_t rows, columns;
};

Shape shape_of(const CaseSize& size) { return size.large ? Shape{32768, 1024} : Shape{128, 1024}; }
Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) { return at::randn(sizes).to(dtype); }
Tensor leaf(const Tensor& t) { return t.detach().set_requires_grad(true); }
int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

// The gradients of outputs with respect to inputs, through the graph that torch made of its own forward.
Peer backward_of(Tensors outputs, Tensors inputs, Tensors gradients) {
  return [=] { return torch::autograd::grad(outputs, inputs, gradients, /*retain_graph=*/true); };
}

enum class Form { kPlain, kPacked, kGated };  // act(x); act(x[:d]) * x[d:]; act(gate) * up

struct ActivationOp {
  const char *op, *activation;  // activation: its name in transformers
  Form form;
};
constexpr ActivationOp kActivationOps[] = {
    {"silu", "silu", Form::kPlain},
    {"gelu", "gelu", Form::kPlain},
    {"gelu_tanh", "gelu_pytorch_tanh", Form::kPlain},
    {"gelu_new", "gelu_new", Form::kPlain},
    {"gelu_fast", "gelu_fast", Form::kPlain},
    {"gelu_quick", "quick_gelu", Form::kPlain},
    {"silu_and_mul", "silu", Form::kPacked},
    {"gelu_and_mul", "gelu", Form::kPacked},
    {"gelu_tanh_and_mul", "gelu_pytorch_tanh", Form::kPacked},
    {"swiglu", "silu", Form::kGated},
    {"geglu", "gelu_pytorch_tanh", Form::kGated},
};
constexpr const char* kOthers[] = {"rms_norm",
                                   "rms_norm_bwd",
                                   "add_rms_norm",
                                   "layer_norm",
                                   "rotary",
                                   "rotary_bwd",
                                   "cross_entropy",
                                   "cross_entropy_bwd",
                                   "linear",
                                   "linear_cross_entropy",
                                   "linear_cross_entropy_fwd"};

OpCase activation_case(const ActivationOp& row, bool backward, const CaseSize& size) {
  const auto [rows, columns] = shape_of(size);
  const auto act = activation_kind(row.activation, "bench").stock;
  const Form form = row.form;
  Tensors inputs{random({rows, form == Form::kPacked ? 2 * columns : columns}, size.dtype)};
  if (form == Form::kGated) inputs.push_back(random({rows, columns}, size.dtype));
  const auto forward = [act, form](const Tensors& in) {
    if (form == Form::kPlain) return act(in[0]);
    const Tensors parts = form == Form::kPacked ? in[0].chunk(2, -1) : in;
    return at::mul(act(parts[0]), parts[1]);
  };
  const Tensor dy = random({rows, columns}, size.dtype);
  OpCase result{.package = form == Form::kGated ? "mlp" : "activation", .shape = cat(rows, "x", columns)};
  if (backward) {
    Tensors leaves;
    for (const Tensor& input : inputs) leaves.push_back(leaf(input));
    result.peer = backward_of({forward(leaves)}, leaves, {dy});
    result.arguments.emplace_back(dy);
  } else {
    result.peer = [=] { return Tensors{forward(inputs)}; };
  }
  result.bytes = bytes_of({dy}) + (backward ? 2 : 1) * bytes_of(inputs);
  for (const Tensor& input : inputs) result.arguments.emplace_back(input);
  return result;
}

OpCase norm_case(const std::string& op, const CaseSize& size) {
  const auto [rows, columns] = shape_of(size);
  const Tensor x = random({rows, columns}, size.dtype), weight = random({columns}, size.dtype);
  OpCase result{.package = "norm", .op = op, .shape = cat(rows, "x", columns)};
  if (op == "layer_norm") {
    const Tensor bias = random({columns}, size.dtype);
    result.arguments = {x, weight, bias, kEps};
    result.peer = [=] { return Tensors{stock::layer_norm(x, weight, bias, kEps)}; };
    result.bytes = 2 * bytes_of({x});
  } else if (op == "add_rms_norm") {
    const Tensor residual = random({rows, columns}, size.dtype);
    result.arguments = {x, residual, weight, kEps, 0.0, "llama"};
    result.peer = [=] {
      const Tensor h = at::add(residual, x);
      return Tensors{stock::rms_norm(h, weight, kEps, 0, "llama"), h};
    };
    result.bytes = 4 * bytes_of({x});
  } else if (op == "rms_norm_bwd") {
    const Tensor dy = random({rows, columns}, size.dtype);
    const Tensor rstd = at::add(x.to(at::kFloat).pow(2).mean(-1), kEps).rsqrt();
    const Tensor input = leaf(x), scale = leaf(weight);
    result.arguments = {dy, x, weight, rstd, 0.0, "llama"};
    result.peer = backward_of({stock::rms_norm(input, scale, kEps, 0, "llama")}, {input, scale}, {dy});
    result.bytes = 3 * bytes_of({x});
  } else {
    result.arguments = {x, weight, kEps, 0.0, "llama"};
    result.peer = [=] { return Tensors{stock::rms_norm(x, weight, kEps, 0, "llama")}; };
    result.bytes = 2 * bytes_of({x});
  }
  return result;
}

// q and k as a model has them: [batch, time, heads, head_dim] in memory, seen as [batch, heads, time, head_dim]
OpCase rotary_case(const std::string& op, const CaseSize& size) {
  constexpr int64_t kHeads = 16, kKvHeads = 4, kHeadDim = 64;
  const int64_t time = size.large ? 32768 : 128;
  const Tensor q = random({1, time, kHeads, kHeadDim}, size.dtype).transpose(1, 2);
  const Tensor k = random({1, time, kKvHeads, kHeadDim}, size.dtype).transpose(1, 2);
  const Tensor angle = at::randn({1, time, kHeadDim / 2}).repeat({1, 1, 2});
  const Tensor cos = angle.cos().to(size.dtype), sin = angle.sin().to(size.dtype);  // [1, time, head_dim]
  OpCase result{.package = "rotary", .op = op, .arguments = {q, k, cos, sin, kHeadDim, false}};
  result.shape = cat(time, "x", kHeads, "+", kKvHeads, "x", kHeadDim);
  result.bytes = 2 * bytes_of({q, k}) + bytes_of({cos, sin});
  const auto apply = [cos, sin](const Tensor& a, const Tensor& b) {
    auto [x, y] = stock::rotary(a, b, cos, sin, kHeadDim, false);
    return Tensors{x, y};
  };
  if (op == "rotary_bwd") {
    const Tensor a = leaf(at::randn_like(q)), b = leaf(at::randn_like(k));
    result.peer = backward_of(apply(a, b), {a, b}, {q, k});  // as gradients
  } else {
    result.peer = [=] { return apply(q, k); };
  }
  return result;
}

OpCase loss_case(const std::string& op, const CaseSize& size) {
  constexpr int64_t kIgnore = -100, kDim = 576;
  const int64_t vocab = size.large ? 49152 : 2048, rows = size.large ? 512 : 128;
  const Tensor target = at::randint(vocab, {rows}, at::TensorOptions(at::kLong));
  const auto loss_of = [=](const Tensor& logits) {
    return at::cross_entropy_loss(logits.to(at::kFloat), target, {}, at::Reduction::Mean, kIgnore, 0.0);
  };
  OpCase result{.package = "loss", .op = op};
  if (op.starts_with("linear_")) {
    const Tensor hidden = random({rows, kDim}, size.dtype), weight = random({vocab, kDim}, size.dtype);
    result.arguments = {hidden, weight, c10::IValue(), target, kIgnore, 0.0, 0.0, 0.0, "mean"};
    result.shape = cat(rows, "x", kDim, " @ ", kDim, "x", vocab);
    result.bytes = bytes_of({hidden, weight});
    if (op == "linear_cross_entropy_fwd") {  // loss and gradients at once: torch's forward and backward together
      result.peer = [=] {
        const Tensor h = leaf(hidden), w = leaf(weight);
        const Tensor loss = loss_of(at::linear(h, w));
        Tensors out{loss.detach()};
        for (Tensor& gradient : torch::autograd::grad({loss}, {h, w})) out.push_back(gradient);
        return out;
      };
      result.bytes *= 2;
    } else {
      result.peer = [=] { return Tensors{loss_of(at::linear(hidden, weight))}; };
    }
    return result;
  }
  const Tensor logits = random({rows, vocab}, size.dtype);
  result.shape = cat(rows, "x", vocab);
  if (op == "cross_entropy_bwd") {
    const Tensor dloss = at::randn({}), input = leaf(logits), lse = logits.to(at::kFloat).logsumexp(-1);
    result.arguments = {dloss, logits, target, lse, kIgnore, 0.0, 0.0, 0.0, "mean"};
    result.peer = backward_of({loss_of(input)}, {input}, {dloss});
    result.bytes = 2 * bytes_of({logits});
  } else {
    result.arguments = {logits, target, kIgnore, 0.0, 0.0, 0.0, "mean"};
    result.peer = [=] { return Tensors{loss_of(logits)}; };
    result.bytes = bytes_of({logits});
  }
  return result;
}

// One token through a projection: the step of decoding.
OpCase linear_case(const CaseSize& size) {
  const int64_t in = size.large ? 8192 : 576, out = size.large ? 8192 : 576;
  const Tensor x = random({1, in}, size.dtype), weight = random({out, in}, size.dtype);
  OpCase result{.package = "linear", .op = "linear", .shape = cat("1x", in, " @ ", in, "x", out)};
  result.arguments = {x, weight, c10::IValue()};
  result.peer = [=] { return Tensors{at::linear(x, weight)}; };
  result.bytes = bytes_of({weight});
  return result;
}

}  // namespace

std::vector<std::string> bench_ops() {
  std::vector<std::string> names(std::begin(kOthers), std::end(kOthers));
  for (const ActivationOp& row : kActivationOps) {
    names.emplace_back(row.op);
    names.push_back(std::string(row.op) + "_bwd");
  }
  return names;
}

OpCase make_case(const std::string& op, const CaseSize& size) {
  const auto names = bench_ops();
  if (std::find(names.begin(), names.end(), op) == names.end()) {
    throw Error(
        {.wanted = cat("an op of ", join(names)), .got = "'" + op + "'", .next = "name one of these, or none for all"});
  }
  const auto make = [&]() -> OpCase {
    for (const ActivationOp& row : kActivationOps) {
      if (op == row.op || op == std::string(row.op) + "_bwd") return activation_case(row, op != row.op, size);
    }
    if (op.find("norm") != std::string::npos) return norm_case(op, size);
    if (op.starts_with("rotary")) return rotary_case(op, size);
    return op == "linear" ? linear_case(size) : loss_case(op, size);
  };
  OpCase result = make();
  result.op = op;
  result.dtype = dtype_name(size.dtype);
  return result;
}

}  // namespace hotswap
