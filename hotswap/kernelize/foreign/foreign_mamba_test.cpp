// causal-conv1d and mamba-ssm of the Hub through their adapters: packages in the same shapes, made here.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/kernelize/example/example.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/testing.h"
#include "hotswap/layers/mamba.h"

namespace hotswap {
namespace {

using binding::BoundLayer;
using test_support::difference;
using test_support::expect_has;
using test_support::ForeignCopy;
using test_support::message_of;

constexpr double kMambaTolerance = 3e-6;  // float32 on both sides
const OptionalTensor kNone = std::nullopt;

Tensor random_of(at::IntArrayRef shape) { return at::randn(shape, at::kFloat); }
Tensor leaf(at::IntArrayRef shape) { return random_of(shape).set_requires_grad(true); }

TEST(ForeignMamba, Convolution) {
  for (const char* name : {"causal-conv1d", "mamba-ssm"}) {
    const ForeignCopy foreign(name, HOTSWAP_TEST_FOREIGN_MAMBA);
    const Package& package = foreign.load();
    const BoundLayer<CausalConv1dForward> got(package.layer("causal_conv1d_fn"), stock::causal_conv1d);
    // Tokens beside each other, channels, and channels of a number that theirs does not take.
    for (const Tensor& x :
         {random_of({2, 8, 5}), random_of({2, 5, 8}).transpose(1, 2), random_of({2, 5, 6}).transpose(1, 2)}) {
      for (const bool with_bias : {true, false}) {
        const Tensor in = x.clone().set_requires_grad(true), weight = leaf({x.size(1), 4}), bias = leaf({x.size(1)});
        const OptionalTensor b = with_bias ? OptionalTensor(bias) : kNone;
        const Tensor y = got.slot(in, weight, b, kNone, kNone, "silu");
        EXPECT_LT(difference(y, stock::causal_conv1d(x, weight, b, kNone, kNone, "silu")), kMambaTolerance);
        const Tensor dy = random_of(y.sizes());
        torch::autograd::backward({y}, {dy});
        EXPECT_LT(difference(in.grad(), dy * 2), kMambaTolerance);
        EXPECT_LT(difference(weight.grad(), weight * 3), kMambaTolerance);
        if (with_bias) EXPECT_LT(difference(bias.grad(), bias * 4), kMambaTolerance);
      }
    }
    EXPECT_EQ(package.calls("causal_conv1d"), 6);
    EXPECT_EQ(package.calls("causal_conv1d_bwd"), 6);
    const auto refused = [&](int64_t width, const OptionalTensor& before, const OptionalTensor& seq) {
      return message_of([&] { got.slot(random_of({1, 3, 4}), random_of({3, width}), kNone, before, seq, "silu"); });
    };
    expect_has(refused(4, random_of({1, 3, 3}), kNone), {"without an initial state", "hotswap/mamba"});
    expect_has(refused(4, kNone, at::zeros({1, 4}, at::kInt)), {"without packed sequences"});
    expect_has(refused(5, kNone, kNone), {"a width other than 2 to 4"});

    const BoundLayer<CausalConv1dUpdateForward> step(package.layer("causal_conv1d_update"),
                                                     stock::causal_conv1d_update);
    const Tensor state = random_of({2, 6, 4}), theirs = state.clone(), x = random_of({2, 6, 1}),
                 weight = random_of({6, 4});
    const Tensor want = stock::causal_conv1d_update(x, state, weight, kNone, "silu");
    EXPECT_LT(difference(step.slot(x, theirs, weight, kNone, "silu"), want), kMambaTolerance);
    EXPECT_TRUE(test_support::same_bits(theirs, state));
    EXPECT_EQ(package.calls("causal_conv1d_update"), 1);
  }
}

TEST(ForeignMamba, SelectiveScan) {
  const ForeignCopy foreign("mamba-ssm", HOTSWAP_TEST_FOREIGN_MAMBA);
  const Package& package = foreign.load();
  const BoundLayer<SelectiveScanForward> got(package.layer("selective_scan_fn"), stock::selective_scan);
  for (const bool gated : {true, false}) {
    const auto sequence = [](int64_t channels) {
      return random_of({2, 7, channels}).transpose(1, 2).set_requires_grad(true);
    };
    SelectiveScanInputs in{.u = sequence(6),
                           .delta = sequence(6),
                           .A = (-at::rand({6, 3}, at::kFloat)).set_requires_grad(true),
                           .B = sequence(3),
                           .C = sequence(3),
                           .D = leaf({6}),
                           .delta_bias = leaf({6})};
    if (gated) in.z = sequence(6);
    const auto [y, last] = got.slot(in);
    const auto [want, want_last] = stock::selective_scan(in);
    EXPECT_LT(difference(y, want), kMambaTolerance);
    EXPECT_LT(difference(last, want_last), kMambaTolerance);
    const Tensor dy = random_of(y.sizes());
    torch::autograd::backward({y}, {dy});
    const auto is_times = [](const Tensor& t, const Tensor& of, double factor) {
      EXPECT_EQ(t.grad().sizes(), t.sizes());
      EXPECT_LT(difference(t.grad(), of * factor), kMambaTolerance) << factor;
    };
    is_times(in.u, dy, 2);
    is_times(in.delta, in.delta, 3);
    is_times(in.A, in.A, 4);
    is_times(in.B, in.B, 5);
    is_times(in.C, in.C, 6);
    is_times(*in.D, *in.D, 7);
    is_times(*in.delta_bias, *in.delta_bias, 8);
    if (gated) {  // theirs reads what is before the gate
      SelectiveScanInputs plain = in;
      plain.z = kNone;
      is_times(*in.z, std::get<0>(stock::selective_scan(plain)), 9);
    }
    expect_has(message_of([&] {
                 const auto [y_again, last_again] = got.slot(in);
                 torch::autograd::backward({last_again}, {random_of(last.sizes())});
               }),
               {"without a gradient of the final state", "hotswap/mamba"});
    SelectiveScanInputs begun = in;
    begun.initial_state = random_of({2, 6, 3});
    expect_has(message_of([&] { got.slot(begun); }), {"without an initial state"});
  }
  EXPECT_EQ(package.calls("selective_scan_bwd"), 2 + 2);
}

}  // namespace
}  // namespace hotswap
