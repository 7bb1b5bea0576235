// Linked projections give what each of them alone gives, in float64: outputs, and gradients through all that may be
// left out.
#include "hotswap/layers/linked.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using Tensors = std::vector<Tensor>;

struct LinkedCase {
  const char* what;
  bool bias = false, x_learns = true, weights_learn = true, x_elsewhere = false;
  std::vector<int> used = {0, 1, 2};  // of the projections
  int rounds = 1;                     // of backward through one graph
};

class Projections : public Module {
 public:
  explicit Projections(bool bias) : q(6, 8, bias), k(6, 4, bias), v(6, 4, bias) {
    own("q", q);
    own("k", k);
    own("v", v);
    each_tensor([](const std::string&, Tensor& t) { t = at::randn(t.sizes(), at::kDouble); });
  }
  Linear q, k, v;
};

// Outputs, then the gradients of x and of every parameter.
Tensors run(Projections& p, const Tensor& values, const Tensors& douts, const LinkedCase& c, bool linked_on) {
  p.each_tensor([&](const std::string&, Tensor& t) {
    t = t.detach().clone();
    t.set_requires_grad(c.weights_learn);
  });
  const Tensor x = values.clone().set_requires_grad(c.x_learns);
  const Tensor inner = x * 1.5;  // not a leaf, as a norm's output is not
  LinkedProjections linked(linked_on);
  const Tensors out = {linked(p.q, inner), linked(p.k, inner), linked(p.v, inner)};
  Tensor loss = c.x_elsewhere ? (inner * inner).sum() : at::zeros({}, at::kDouble);
  for (const int i : c.used) loss = loss + (out[i] * douts[i]).sum();
  for (int round = 0; round < c.rounds; ++round) torch::autograd::backward({loss}, {}, round + 1 < c.rounds);
  Tensors result;
  for (const Tensor& t : out) result.push_back(t.detach());
  result.push_back(x.grad());
  for (const Tensor& t : p.parameters()) result.push_back(t.grad());
  return result;
}

TEST(LinkedProjections, GiveWhatEachGivesAlone) {
  const std::vector<LinkedCase> cases = {
      {"all"},
      {"with biases", true},
      {"frozen weights", true, true, false},
      {"an input that does not learn", true, false},
      {"an input that is used elsewhere", false, true, true, true},
      {"the first alone", false, true, true, false, {0}},
      {"the last alone", true, true, true, false, {2}},
      {"without the middle one", false, true, true, false, {0, 2}},
      {"twice through one graph", true, true, true, true, {0, 1, 2}, 2},
  };
  for (const LinkedCase& c : cases) {
    Projections p(c.bias);
    const Tensor x = at::randn({2, 3, 6}, at::kDouble);
    const Tensors douts = {at::randn({2, 3, 8}, at::kDouble), at::randn({2, 3, 4}, at::kDouble),
                           at::randn({2, 3, 4}, at::kDouble)};
    const Tensors want = run(p, x, douts, c, false), got = run(p, x, douts, c, true);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].defined(), want[i].defined()) << c.what << ", result " << i;
      if (!want[i].defined()) continue;
      EXPECT_LE((got[i] - want[i]).norm().item<double>(), 1e-12) << c.what << ", result " << i;
    }
  }
}

// The input's gradient reaches it once, through the first projection's node, and not once a projection.
TEST(LinkedProjections, MeetInTheFirst) {
  Projections p(false);
  p.requires_grad(true);
  const Tensor x = at::randn({4, 6}, at::kDouble).set_requires_grad(true);
  for (const bool on : {false, true}) {
    LinkedProjections linked(on);
    const Tensor q = linked(p.q, x), k = linked(p.k, x);
    const auto leads_to_x = [end = torch::autograd::impl::gradient_edge(x).function](const Tensor& y) {
      const auto& edges = y.grad_fn()->next_edges();
      return std::any_of(edges.begin(), edges.end(), [&](const auto& edge) { return edge.function == end; });
    };
    EXPECT_TRUE(leads_to_x(q)) << on;
    EXPECT_EQ(leads_to_x(k), !on);
  }
}

TEST(LinkedProjections, AreAsEverWithoutGradients) {
  Projections p(true);
  const Tensor x = at::randn({4, 6}, at::kDouble).set_requires_grad(true);
  const at::NoGradGuard guard;
  LinkedProjections linked(true);
  EXPECT_TRUE(at::equal(linked(p.q, x), p.q.forward(x)));
  EXPECT_FALSE(linked(p.k, x).requires_grad());
}

TEST(LinkedProjections, RefuseAGradientOfTheGradient) {
  Projections p(false);
  p.requires_grad(true);
  const Tensor x = at::randn({4, 6}, at::kDouble).set_requires_grad(true);
  LinkedProjections linked(true);
  const Tensor y = linked(p.q, x);
  test_support::expect_has(
      test_support::message_of([&] { torch::autograd::backward({y.sum()}, {}, true, /*create_graph=*/true); }),
      {"gradient of the gradient", "unkernelize"});
}

}  // namespace
}  // namespace hotswap
