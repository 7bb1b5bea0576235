// The host's side of moe/1: which gradients are asked for, when h may be written over, and whole mixtures beside stock
// ones.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/kernelize/bind/test_bind.h"
#include "hotswap/layers/experts.h"

namespace hotswap {
namespace {

using test_support::Bound;
using test_support::bundled_layer;
using test_support::difference;
using test_support::kTolerance;
using test_support::leaves;

constexpr int64_t kExperts = 4;

struct Inputs {
  Tensor x = at::randn({6, 8}), weights = at::randn({6, 2}), up = at::randn({kExperts, 10, 8}),
         down = at::randn({kExperts, 8, 5}), index = at::randint(0, kExperts, {6, 2}, at::kLong);
  Tensors all() const { return {x, weights, up, down}; }
  template <typename Forward>
  Tensor through(const Forward& forward, const Tensors& in) const {
    return forward(in[0], Routing{index, in[1]}, ExpertWeights{.up = in[2], .down = in[3]}, ExpertsOptions{});
  }
};

int64_t calls(const std::string& op) { return op_calls("moe", op); }

TEST(BoundExperts, FrozenWeightsCostNoGradient) {
  const Bound<ExpertsForward> bound(bundled_layer("moe", "Experts"), stock::experts);
  const Inputs inputs;
  Tensors in = leaves(inputs.all(), true), want = leaves(inputs.all(), true);
  for (const size_t frozen : {2, 3}) in[frozen].set_requires_grad(false), want[frozen].set_requires_grad(false);
  inputs.through(bound, in).sum().backward();
  inputs.through(stock::experts, want).sum().backward();
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(in[i].grad().defined(), i < 2) << i;
    if (i < 2) EXPECT_LT(difference(in[i].grad(), want[i].grad()), kTolerance) << i;
  }
}

TEST(BoundExperts, HIsWrittenOverOnlyWhereNobodyReadsItAgain) {
  const Bound<ExpertsForward> bound(bundled_layer("moe", "Experts"), stock::experts);
  const Inputs inputs;
  const Tensors in = leaves(inputs.all(), true);
  const Tensor y = inputs.through(bound, in), dy = at::randn({6, 8});
  const int64_t kept = calls("moe_experts_bwd"), over = calls("moe_experts_bwd_");
  torch::autograd::backward({y}, {dy}, /*retain_graph=*/true);
  EXPECT_EQ(calls("moe_experts_bwd"), kept + 1);
  const Tensor once = in[2].grad().clone();
  torch::autograd::backward({y}, {dy});
  EXPECT_EQ(calls("moe_experts_bwd_"), over + 1);
  EXPECT_TRUE(at::equal(in[2].grad(), once * 2));  // twice the same bits
}

TEST(BoundExperts, IdsThatAreNoExpertAddNothing) {
  const Bound<ExpertsForward> bound(bundled_layer("moe", "Experts"), stock::experts);
  Inputs inputs;
  inputs.index[0].fill_(-1);
  inputs.index[1][1].fill_(kExperts);
  for (const at::ScalarType type : {at::kLong, at::kInt}) {
    inputs.index = inputs.index.to(type);
    const Tensors in = leaves(inputs.all(), true), want_in = leaves(inputs.all(), true);
    const Tensor y = inputs.through(bound, in), want = inputs.through(stock::experts, want_in);
    EXPECT_LT(difference(y, want), kTolerance);
    EXPECT_EQ(y[0].abs().max().item<float>(), 0);
    y.sum().backward();
    want.sum().backward();
    for (size_t i = 0; i < in.size(); ++i) EXPECT_LT(difference(in[i].grad(), want_in[i].grad()), kTolerance) << i;
    EXPECT_EQ(in[1].grad()[1][1].item<float>(), 0);
  }
}

TEST(BoundExperts, NoTokens) {
  const Bound<ExpertsForward> bound(bundled_layer("moe", "Experts"), stock::experts);
  Inputs inputs;
  inputs.x = at::randn({0, 8});
  inputs.weights = at::randn({0, 2});
  inputs.index = at::randint(0, kExperts, {0, 2}, at::kLong);
  const Tensors in = leaves(inputs.all(), true);
  const Tensor y = inputs.through(bound, in);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 8}));
  y.sum().backward();
  EXPECT_EQ(in[2].grad().abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace hotswap
