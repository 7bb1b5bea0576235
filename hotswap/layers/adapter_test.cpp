// What an adapter that trains computes and learns, against the formula in plain torch and float64: outputs, gradients
// of x, A, B and biases, with dropout and DoRA, beside plain, frozen and packed weights.
#include "hotswap/layers/adapter.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/linked.h"

namespace hotswap {
namespace {

using Tensors = std::vector<Tensor>;

struct AdapterCase {
  const char* what;
  bool bias = false, x_learns = true, dora = false;
  int64_t rows = 5, rank = 3;
};

constexpr int64_t kAdaptedIn = 6, kAdaptedOut = 8;

Tensor leaf(at::IntArrayRef shape) { return at::randn(shape, at::kDouble).set_requires_grad(true); }

// A layer with an adapter that learns; its own weight is frozen.
struct Layer {
  explicit Layer(const AdapterCase& c) : linear(kAdaptedIn, kAdaptedOut, c.bias) {
    linear.each_tensor([](const std::string&, Tensor& t) { t = at::randn(t.sizes(), at::kDouble); });
    Adapter adapter{.a = leaf({c.rank, kAdaptedIn}), .b = leaf({kAdaptedOut, c.rank}), .scale = 0.7};
    if (c.dora) adapter.magnitude = at::rand({kAdaptedOut}, at::kDouble).add_(0.5).set_requires_grad(true);
    linear.set_adapter(std::move(adapter));
  }
  const Adapter& adapter() const { return *linear.adapter(); }
  Linear linear;
};

// By the formula, differentiated by autograd.
Tensor adapted_by_formula(const Layer& layer, const Tensor& x) {
  const Adapter& a = layer.adapter();
  const Tensor weight = layer.linear.data() + a.scale * a.b.matmul(a.a);
  Tensor y = at::linear(x, weight);
  if (a.magnitude.defined()) y = y * (a.magnitude / at::linalg_vector_norm(weight.detach(), 2, 1));
  return layer.linear.bias.defined() ? y + layer.linear.bias : y;
}

Tensors learned(const Layer& layer, const Tensor& x, const Tensor& y, const Tensor& dy) {
  (y * dy).sum().backward();
  Tensors found = {y.detach(), x.grad(), layer.adapter().a.grad(), layer.adapter().b.grad()};
  if (layer.adapter().magnitude.defined()) found.push_back(layer.adapter().magnitude.grad());
  for (const Tensor* t : {&x, &layer.adapter().a, &layer.adapter().b, &layer.adapter().magnitude}) {
    if (t->defined()) t->mutable_grad() = Tensor();
  }
  EXPECT_FALSE(layer.linear.data().grad().defined());
  return found;
}

void expect_close(const Tensors& got, const Tensors& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << what << " " << i;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-10, 1e-11)) << what << " " << i;
  }
}

class TrainedAdapter : public testing::TestWithParam<AdapterCase> {};

TEST_P(TrainedAdapter, LearnsByTheFormula) {
  const AdapterCase c = GetParam();
  const Layer layer(c);
  const Tensor x = at::randn({2, c.rows, kAdaptedIn}, at::kDouble).set_requires_grad(c.x_learns);
  const Tensor dy = at::randn({2, c.rows, kAdaptedOut}, at::kDouble);
  const Tensors expected = learned(layer, x, adapted_by_formula(layer, x), dy);
  expect_close(learned(layer, x, layer.linear.forward(x), dy), expected, c.what);
  LinkedProjections linked(true);
  expect_close(learned(layer, x, linked(layer.linear, x), dy), expected, "linked");
}

// dL/da and dL/db by central differences of the layer itself.
TEST_P(TrainedAdapter, IsTheSlopeOfItsOutput) {
  const AdapterCase c = GetParam();
  const Layer layer(c);
  const Tensor x = at::randn({c.rows, kAdaptedIn}, at::kDouble).set_requires_grad(c.x_learns);
  const Tensor dy = at::randn({c.rows, kAdaptedOut}, at::kDouble);
  const Tensors found = learned(layer, x, layer.linear.forward(x), dy);
  const at::NoGradGuard no_grad;
  // The norm of DoRA is a constant to the gradient, which differences are not: those of the magnitude are exact.
  const Tensor& of = c.dora ? layer.adapter().magnitude : layer.adapter().a;
  const Tensor& gradient = c.dora ? found[4] : found[2];
  for (int64_t i = 0; i < of.numel(); ++i) {
    const double step = 1e-5;
    Tensor element = of.view({-1})[i];
    element += step;
    const double above = (layer.linear.forward(x) * dy).sum().item<double>();
    element -= 2 * step;
    const double below = (layer.linear.forward(x) * dy).sum().item<double>();
    element += step;
    EXPECT_NEAR(gradient.reshape({-1})[i].item<double>(), (above - below) / (2 * step), 1e-6) << c.what << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TrainedAdapter,
    testing::Values(AdapterCase{"plain"}, AdapterCase{"bias", true}, AdapterCase{"first_layer", false, false},
                    AdapterCase{"dora", false, true, true}, AdapterCase{"dora_bias", true, true, true},
                    AdapterCase{"one_row", false, true, false, 1, 1}, AdapterCase{"no_rows", true, true, false, 0}),
    [](const auto& info) { return std::string(info.param.what); });

// Layers that read the same x: one dx for all, as the sum of what each of them gives.
TEST(Adapters, LinkedLayersAddTheirGradients) {
  const Layer q(AdapterCase{"q"}), k(AdapterCase{"k", true}), v(AdapterCase{"v", false, true, true});
  const Tensor x = at::randn({4, kAdaptedIn}, at::kDouble).set_requires_grad(true);
  const Tensor dy = at::randn({4, kAdaptedOut}, at::kDouble);
  const auto gradient = [&](const auto& project) {
    const Tensor inner = x * 1.5;
    ((project(q.linear, inner) + project(k.linear, inner) * 2 + project(v.linear, inner)) * dy).sum().backward();
    const Tensor found = x.grad().clone();
    x.mutable_grad() = Tensor();
    return found;
  };
  LinkedProjections linked(true);
  const Tensor joined = gradient([&](const Linear& layer, const Tensor& t) { return linked(layer, t); });
  const Tensor apart = gradient([&](const Linear& layer, const Tensor& t) { return layer.forward(t); });
  EXPECT_TRUE(at::allclose(joined, apart, 1e-10, 1e-11));
}

TEST(Adapters, ASecondDerivativeIsRefused) {
  const Layer layer(AdapterCase{"plain"});
  const Tensor x = at::randn({2, kAdaptedIn}, at::kDouble).set_requires_grad(true);
  const Tensor y = (layer.linear.forward(x) * layer.linear.forward(x)).sum();
  EXPECT_NE(test_support::message_of([&] { y.backward({}, true, /*create_graph=*/true); }).find("gradient of the"),
            std::string::npos);
}

// A float32 adapter of a bfloat16 layer: products of bfloat16 copies, summed in float32, and gradients in float32. A
// result has at most four roundings to bfloat16 (x B or dy A, what is between, its product, the sum), each
// of half of a last bit of values no larger than the max: 2^-9 of it.
TEST(Adapters, AFloat32AdapterOfABfloat16LayerMultipliesInBfloat16) {
  Linear linear(kAdaptedIn, kAdaptedOut, false);
  linear.weight.data = at::randn({kAdaptedOut, kAdaptedIn}).to(at::kBFloat16);
  linear.set_adapter(Adapter{.a = at::randn({3, kAdaptedIn}).set_requires_grad(true),
                             .b = at::randn({kAdaptedOut, 3}).set_requires_grad(true),
                             .scale = 0.7});
  const Tensor x = at::randn({9, kAdaptedIn}).to(at::kBFloat16).set_requires_grad(true);
  const Tensor dy = at::randn({9, kAdaptedOut}).to(at::kBFloat16);
  const Adapter& adapter = *linear.adapter();
  const Tensor y = linear.forward(x);
  y.backward(dy);
  const auto exact = [](const Tensor& t) { return t.detach().to(at::kDouble).set_requires_grad(true); };
  const Tensor wide_x = exact(x), a = exact(adapter.a), b = exact(adapter.b);
  const Tensor sum = at::linear(wide_x, exact(linear.data())) + 0.7 * at::linear(at::linear(wide_x, a), b);
  sum.backward(dy.to(at::kDouble));
  const auto near = [](const Tensor& got, at::ScalarType type, const Tensor& expected) {
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_LE((got.to(at::kDouble) - expected).abs().max().item<double>(),
              4 * 0x1p-9 * expected.abs().max().item<double>());
  };
  near(y, at::kBFloat16, sum);
  near(x.grad(), at::kBFloat16, wide_x.grad());
  near(adapter.a.grad(), at::kFloat, a.grad());
  near(adapter.b.grad(), at::kFloat, b.grad());
}

class Dropout : public testing::Test {
 protected:
  void SetUp() override {
    Adapter adapter = layer_.adapter();
    adapter.dropout = dropout_ = std::make_shared<AdapterDropout>(AdapterDropout{.p = 0.3});
    layer_.linear.set_adapter(std::move(adapter));
  }
  static void seed(uint64_t seed) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_current_seed(seed);
  }
  Layer layer_{AdapterCase{"plain"}};
  std::shared_ptr<AdapterDropout> dropout_;
};

TEST_F(Dropout, IsOffInEvaluationAndAtZero) {
  const Tensor x = at::randn({5, kAdaptedIn}, at::kDouble);
  const Tensor expected = adapted_by_formula(layer_, x);
  layer_.linear.eval();
  EXPECT_TRUE(at::allclose(layer_.linear.forward(x), expected));
  layer_.linear.train();
  EXPECT_FALSE(at::allclose(layer_.linear.forward(x), expected));
  dropout_->p = 0;
  const Tensor without = layer_.linear.forward(x);
  Adapter none = layer_.adapter();
  none.dropout = nullptr;
  layer_.linear.set_adapter(none);
  EXPECT_TRUE(at::equal(layer_.linear.forward(x), without));
}

TEST_F(Dropout, ASeedGivesTheSameMaskAndBackwardHasIt) {
  const Tensor x = at::randn({5, kAdaptedIn}, at::kDouble).set_requires_grad(true);
  const auto run = [&](uint64_t of) {
    seed(of);
    return learned(layer_, x, layer_.linear.forward(x), at::ones({5, kAdaptedOut}, at::kDouble));
  };
  const Tensors first = run(1), again = run(1), other = run(2);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << i;
  EXPECT_FALSE(at::equal(first[0], other[0]));
  // Linear in the dropped x: what forward read is what backward differentiated, or this does not hold.
  const Tensor change = first[0] - at::linear(x, layer_.linear.data());
  const Tensor through = first[1] - at::linear(at::ones({5, kAdaptedOut}, at::kDouble), layer_.linear.data().t());
  EXPECT_TRUE(at::allclose((through * x).sum(), change.sum()));
  EXPECT_TRUE(at::allclose((first[2] * layer_.adapter().a).sum(), change.sum()));
}

// Of 2000 seeds: the mean over masks is what no dropout gives, and the share of what is dropped is p.
TEST_F(Dropout, KeepsTheMean) {
  const at::AutoGradMode no_grad(false);
  const Tensor x = at::ones({1, kAdaptedIn}, at::kDouble);
  const Adapter& a = layer_.adapter();
  Tensor sum = at::randn({1, kAdaptedOut}, at::kDouble) * 0, dropped_count = sum.sum();
  for (uint64_t i = 0; i < 2000; ++i) {
    seed(i);
    const Tensor read = dropped(x, a, true);
    dropped_count += (read == 0).sum();
    sum += at::linear(at::linear(read, a.a), a.b);
  }
  const Tensor mean = sum / 2000, expected = at::linear(at::linear(x, a.a), a.b);
  EXPECT_NEAR(dropped_count.item<double>() / (2000 * kAdaptedIn), 0.3, 0.02);  // 5 standard deviations: 0.021
  const Tensor spread = at::linalg_vector_norm(at::linear(a.a.t(), a.b).t(), 2, 1) * std::sqrt(0.3 / 0.7 / 2000);
  EXPECT_LE(((mean - expected).abs() / spread).max().item<double>(), 5);
}

// Layers that are parts of one module of transformers read x through one mask.
TEST_F(Dropout, PartsShareAMask) {
  dropout_->parts = 2;
  const Tensor x = at::randn({5, kAdaptedIn}, at::kDouble);
  const Tensor first = layer_.linear.forward(x), second = layer_.linear.forward(x), third = layer_.linear.forward(x);
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_FALSE(at::equal(first, third));
}

// An encoded weight trains as the plain one that it stands for, to the bit, and is held as it is.
TEST(Adapters, APackedWeightTrainsAsItsDequantised) {
  const Tensor bytes = at::randint(0, 255, {kAdaptedOut, kAdaptedIn / 2}, at::kByte);
  const Weight packed{.format = WeightFormat::kInt4,
                      .data = bytes,
                      .scales = at::rand({kAdaptedOut, 1}),
                      .zeros = at::ones({kAdaptedOut, 1}) * 8,
                      .logical_shape = {kAdaptedOut, kAdaptedIn}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Linear linear(kAdaptedIn, kAdaptedOut, false), plain(kAdaptedIn, kAdaptedOut, false);
    linear.weight = packed;
    plain.weight.data = packed.dequantised(dtype);
    const Adapter adapter{.a = at::randn({3, kAdaptedIn}).set_requires_grad(true),
                          .b = at::randn({kAdaptedOut, 3}).set_requires_grad(true)};
    for (const bool adapts : {true, false}) {
      for (Linear* one : {&linear, &plain}) one->set_adapter(adapts ? std::optional(adapter) : std::nullopt);
      const Tensor x = at::randn({7, kAdaptedIn}).to(dtype).set_requires_grad(true),
                   dy = at::randn({7, kAdaptedOut}).to(dtype);
      Tensors found;
      for (Linear* one : {&linear, &plain}) {
        const Tensor y = one->forward(x);
        (y * dy).sum().backward();
        found.insert(found.end(), {y.detach(), x.grad()});
        x.mutable_grad() = Tensor();
      }
      EXPECT_TRUE(at::equal(found[0], found[2])) << adapts;
      EXPECT_TRUE(at::equal(found[1], found[3])) << adapts;
    }
  }
}

}  // namespace
}  // namespace hotswap
