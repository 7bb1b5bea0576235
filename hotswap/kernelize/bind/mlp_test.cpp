// A gated MLP as one node of the graph: what autograd gives in float64, by the ops that it says, and where it stands
// back.
#include "hotswap/layers/mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "hotswap/kernelize/bind/test_bind.h"

namespace hotswap {
namespace {

using test_support::bundled_layer;
using test_support::difference;
using test_support::expect_has;
using test_support::kTolerance;
using test_support::message_of;

constexpr int64_t kDim = 12, kHidden = 20;

struct Kind {
  const char *layer, *activation, *op;
};
constexpr Kind kKinds[] = {{"SwiGLUMLP", "silu", "swiglu"}, {"GeGLUMLP", "gelu_pytorch_tanh", "geglu"}};

// A gated MLP with its package's kernels, and the same in float64 by torch's own operators.
struct Mlp {
  explicit Mlp(const Kind& of, bool bias = false)
      : kind(of),
        layer(bundled_layer("mlp", of.layer)),
        mlp({.dim = kDim, .hidden = kHidden, .activation = of.activation, .bias = bias}) {
    mlp.each_tensor([](const std::string&, Tensor& t) { t = at::randn(t.sizes(), at::kFloat) / 2; });
    mlp.requires_grad(true);
    mlp.each_slot([&](const std::string&, SlotBase& slot) {
      if (slot.contract() == "gated_mlp/1") layer.contract().bind(slot, layer);
      if (slot.contract() == "gated_mlp/1") gated = &slot;
    });
  }
  // y, then the gradients of x and of every parameter.
  Tensors run(const Tensor& values, const Tensor& dy, int rounds = 1) {
    for (Tensor& p : mlp.parameters()) p.mutable_grad() = Tensor();
    const Tensor x = values.clone().set_requires_grad(true), y = mlp.forward(x * 1);
    for (int round = 0; round < rounds; ++round) torch::autograd::backward({y}, {dy}, round + 1 < rounds);
    return with_gradients(y, x, mlp.parameters());
  }
  Tensors exactly(const Tensor& values, const Tensor& dy, int rounds = 1) {
    const auto leaf = [](const Tensor& t) { return t.detach().to(at::kDouble).set_requires_grad(true); };
    Tensors w;
    for (const Tensor& p : mlp.parameters()) w.push_back(leaf(p));
    const Tensor x = leaf(values), y = formula(x, w);
    torch::autograd::backward({y}, {dy.to(at::kDouble) * rounds});
    Tensors learning;
    for (size_t i = 0; i < w.size(); ++i) learning.push_back(mlp.parameters()[i].requires_grad() ? w[i] : Tensor());
    return with_gradients(y, x, learning);
  }

  Tensor formula(const Tensor& x, const Tensors& w) const {
    const bool bias = w.size() == 6;  // gate, up, down, each followed by its bias
    const auto linear = [&](const Tensor& in, size_t i) {
      const Tensor out = at::matmul(in, w[bias ? 2 * i : i].t());
      return bias ? out + w[2 * i + 1] : out;
    };
    return linear(activation_kind(kind.activation, "a test").stock(linear(x, 0)) * linear(x, 1), 2);
  }

  Kind kind;
  const PackageLayer& layer;
  GatedMLP mlp;
  SlotBase* gated = nullptr;

 private:
  static Tensors with_gradients(const Tensor& y, const Tensor& x, const Tensors& parameters) {
    Tensors result = {y.detach(), x.grad()};
    for (const Tensor& p : parameters) result.push_back(p.defined() ? p.grad() : Tensor());
    return result;
  }
};

struct Calls {
  explicit Calls(const Kind& kind) : op(kind.op), before(now()) {}
  // forward, backward, in place, in place and forward's result again
  std::vector<int64_t> now() const {
    std::vector<int64_t> counts;
    for (const char* end : {"", "_bwd", "_bwd_", "_bwd_again_"}) counts.push_back(op_calls("mlp", op + end));
    return counts;
  }
  std::vector<int64_t> since() const {
    std::vector<int64_t> counts = now();
    for (size_t i = 0; i < counts.size(); ++i) counts[i] -= before[i];
    return counts;
  }
  std::string op;
  std::vector<int64_t> before;
};

void expect_same(const Tensors& got, const Tensors& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << what << ", result " << i;
    if (!want[i].defined()) continue;
    EXPECT_LT(difference(got[i], want[i]), kTolerance) << what << ", result " << i;
  }
}

TEST(BoundGatedMlp, IsOneNodeThatMakesItsMiddleAgain) {
  for (const Kind& kind : kKinds) {
    Mlp m(kind);
    for (const auto& shape : {std::vector<int64_t>{7}, {2, 5}, {2, 1, 3}, {0}}) {
      std::vector<int64_t> sizes = shape;
      sizes.push_back(kDim);
      const Tensor x = at::randn(sizes), dy = at::randn(sizes);
      const Calls calls(kind);
      expect_same(m.run(x, dy), m.exactly(x, dy), kind.layer);
      if (x.numel() == 0) continue;
      EXPECT_EQ(calls.since(), (std::vector<int64_t>{1, 0, 0, 1})) << kind.layer;
    }
    const Tensor x = at::randn({3, kDim}), dy = at::randn({3, kDim});
    const Calls calls(kind);
    expect_same(m.run(x, dy, 2), m.exactly(x, dy, 2), "a graph that is kept");
    EXPECT_EQ(calls.since(),
              (std::vector<int64_t>{2, 1, 0, 1}));  // kept: made again beside gate and up, then over them
  }
}

TEST(BoundGatedMlp, LeadsToItsInputAndItsWeights) {
  Mlp m(kKinds[0]);
  const Tensor x = at::randn({3, kDim}).set_requires_grad(true);
  EXPECT_EQ(m.mlp.forward(x).grad_fn()->next_edges().size(), 4);
}

TEST(BoundGatedMlp, GoesThroughItsPartsWhereSomethingIsDifferent) {
  const Tensor x = at::randn({3, kDim}), dy = at::randn({3, kDim});
  for (const Kind& kind : kKinds) {
    Mlp with_bias(kind, true);
    Calls calls(kind);
    expect_same(with_bias.run(x, dy), with_bias.exactly(x, dy), "biases");
    EXPECT_EQ(calls.since(), (std::vector<int64_t>{1, 0, 1, 0}));
    Mlp frozen(kind);
    frozen.mlp.up_proj.weight.data.set_requires_grad(false);
    calls = Calls(kind);
    expect_same(frozen.run(x, dy), frozen.exactly(x, dy), "a weight that does not learn");
    EXPECT_EQ(calls.since(), (std::vector<int64_t>{1, 0, 1, 0}));
    for (const bool claims : {true, false}) {  // a Linear's kernel that trains otherwise is not left out
      Mlp linear(kind);
      linear.mlp.each_slot([&](const std::string&, SlotBase& slot) {
        if (slot.contract() != "linear/1") return;
        bundled_layer("linear", "Linear").contract().bind(slot, bundled_layer("linear", "Linear"));
        EXPECT_TRUE(slot.claims("torch_products"));
        if (!claims) slot.set_claims({});
      });
      calls = Calls(kind);
      const int64_t products = op_calls("linear", "linear");
      expect_same(linear.run(x, dy), linear.exactly(x, dy), "Linear bound");
      EXPECT_EQ(calls.since(), claims ? (std::vector<int64_t>{1, 0, 0, 1}) : (std::vector<int64_t>{1, 0, 1, 0}));
      EXPECT_EQ(op_calls("linear", "linear") - products, claims ? 0 : 3);
    }
    Mlp unbound(kind);
    unbound.gated->unbind();
    calls = Calls(kind);
    expect_same(unbound.run(x, dy), unbound.exactly(x, dy), "unbound");
    EXPECT_EQ(calls.since(), (std::vector<int64_t>{0, 0, 0, 0}));
    Mlp quiet(kind);
    calls = Calls(kind);
    const at::NoGradGuard guard;
    EXPECT_LT(difference(quiet.mlp.forward(x), quiet.formula(x, quiet.mlp.parameters())), kTolerance);
    EXPECT_EQ(calls.since(), (std::vector<int64_t>{1, 0, 0, 0}));
  }
}

TEST(BoundGatedMlp, RefusesAGradientOfTheGradient) {
  Mlp m(kKinds[0]);
  const Tensor y = m.mlp.forward(at::randn({3, kDim}).set_requires_grad(true));
  expect_has(message_of([&] { torch::autograd::backward({y.sum()}, {}, true, /*create_graph=*/true); }),
             {"gradient of the gradient through mlp:SwiGLUMLP", "unkernelize"});
}

}  // namespace
}  // namespace hotswap
