// AdamW: the formula, its kinds of states, by torch's fused update and by a kernel; clipping.
#include "hotswap/training/optimizers/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/kernelize.h"

namespace hotswap {
namespace {

constexpr AdamWOptions kOptions{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

// The published formula, in float64.
struct Reference {
  Tensor p, m, v;
  int64_t t = 0;
  void step(const Tensor& g, const AdamWOptions& o) {
    ++t;
    p = p * (1 - o.learning_rate * o.weight_decay);
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    p = p - o.learning_rate * (m / (1 - std::pow(o.beta1, t))) / ((v / (1 - std::pow(o.beta2, t))).sqrt() + o.eps);
  }
};

class AdamWTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamWTest, FollowsTheFormula) {
  const auto dtype = GetParam();
  for (const int64_t size : {1, 7, 33 * 65}) {
    Tensor parameter = at::randn({size}).to(dtype);
    Reference want{parameter.to(at::kDouble), at::zeros({size}, at::kDouble), at::zeros({size}, at::kDouble)};
    AdamW optimizer({parameter}, kOptions);
    for (int step = 0; step < 5; ++step) {
      const Tensor gradient = at::randn({size}).to(dtype);
      parameter.mutable_grad() = gradient.clone();
      optimizer.step(0.25);
      optimizer.zero_grad();
      EXPECT_FALSE(parameter.grad().defined());
      want.step(0.25 * gradient.to(at::kDouble), kOptions);
    }
    // bfloat16: the master copy keeps float32 precision, one rounding remains
    const double tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;
    EXPECT_TRUE(at::allclose(parameter.to(at::kDouble), want.p, tolerance, 1e-6)) << size << ' ' << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AdamWTest, testing::Values(at::kFloat, at::kBFloat16));

TEST(AdamW, SmallUpdatesOfBfloat16AreNotLost) {
  Tensor parameter = at::ones({8}, at::TensorOptions(at::kBFloat16));
  AdamW optimizer({parameter}, {.learning_rate = 1e-4, .weight_decay = 0});
  for (int step = 0; step < 100; ++step) {  // each step moves by 1e-4, far below bfloat16's 2^-8 at 1
    parameter.mutable_grad() = at::ones({8}, at::TensorOptions(at::kBFloat16));
    optimizer.step();
  }
  EXPECT_NEAR(parameter[0].item<double>(), 0.99, 0.004);
}

TEST(AdamW, RefusesGradientsThatAreNotFinite) {
  Tensor parameter = at::ones({4});
  AdamW optimizer({parameter}, kOptions);
  parameter.mutable_grad() = at::ones({4}) * NAN;
  EXPECT_THROW(optimizer.step(clip_factor(gradient_norm({parameter}), 1.0)), Error);
  parameter.mutable_grad() = at::ones({4}) * INFINITY;
  EXPECT_THROW(optimizer.step(clip_factor(gradient_norm({parameter}), 1.0)), Error);
  EXPECT_TRUE(at::allclose(parameter, at::ones({4})));
  EXPECT_THROW(AdamW({at::ones({4}, at::TensorOptions(at::kLong))}, kOptions), Error);
}

TEST(Clipping, IsOneNormOverAllParameters) {
  Tensor a = at::zeros({5, 7}), b = at::zeros({3}), without = at::zeros({2});
  a.mutable_grad() = at::randn({5, 7});
  b.mutable_grad() = at::randn({3}) * 10;
  const double expected =
      std::sqrt((a.grad().to(at::kDouble).square().sum() + b.grad().to(at::kDouble).square().sum()).item<double>());
  EXPECT_NEAR(clip_grad_norm_({a, b, without}, 0.5), expected, 1e-5 * expected);
  EXPECT_NEAR(gradient_norm({a, b, without}), 0.5, 1e-5);
  EXPECT_NEAR(clip_grad_norm_({a, b}, 100.0), 0.5, 1e-5);  // below the limit: untouched
  EXPECT_NEAR(gradient_norm({a, b}), 0.5, 1e-5);
  EXPECT_EQ(gradient_norm({without}), 0);
  EXPECT_EQ(clip_factor(123, 0), 1);
}

// In bfloat16 torch's own optimizer, and so Trainer, keeps states in bfloat16; both states are named by an option.
TEST(AdamWStates, HaveTheParametersDtypeWithoutAMaster) {
  for (const bool master : {true, false}) {
    Tensor parameter = at::ones({8}, at::kBFloat16);
    AdamW optimizer({parameter}, {.learning_rate = 1e-4,
                                  .weight_decay = 0,
                                  .states = master ? OptimizerStates::kFloat32Master : OptimizerStates::kParameter});
    for (int step = 0; step < 20; ++step) {
      parameter.mutable_grad() = at::ones({8}, at::kBFloat16);
      optimizer.step();
    }
    EXPECT_EQ(optimizer.states()[0].average.scalar_type(), master ? at::kFloat : at::kBFloat16);
    EXPECT_EQ(optimizer.states()[0].master.defined(), master);
    // 20 updates of 1e-4: with a master they add up to half a step of bfloat16 below 1; without each is rounded away.
    EXPECT_EQ(parameter[0].item<double>() < 1, master);
  }
}

// The same 20 updates without a master: each of many weights moves with the probability of what it lost.
TEST(AdamWStates, StochasticRoundingKeepsSmallUpdatesInTheMean) {
  for (const bool kernel : {false, true}) {
    Tensor parameter = at::ones({4096}, at::kBFloat16);
    AdamW optimizer({parameter}, {.learning_rate = 1e-4, .weight_decay = 0, .states = OptimizerStates::kStochastic});
    if (kernel) {
      const KernelReport report = kernelize(optimizer.update(), Mode::INFERENCE, {.strict = true});
      ASSERT_EQ(report.bound(), 1) << report;
    }
    for (int step = 0; step < 20; ++step) {
      parameter.mutable_grad() = at::ones({4096}, at::kBFloat16);
      optimizer.step();
    }
    EXPECT_EQ(optimizer.states()[0].average.scalar_type(), at::kBFloat16);
    EXPECT_FALSE(optimizer.states()[0].master.defined());
    // A weight's step below 1 is 2^-8, taken with probability 0.0256 in each of 20 updates: a spread of 0.0027.
    EXPECT_NEAR(parameter.to(at::kDouble).mean().item<double>(), 1 - 20e-4, 5 * 0.0027 / 64) << kernel;
  }
}

// A kernel's update and torch's: one formula, each operation rounded once in another order.
TEST(AdamWStates, AKernelUpdatesAsTorchDoes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto states :
         {OptimizerStates::kParameter, OptimizerStates::kFloat32Master, OptimizerStates::kBFloat16Moments}) {
      at::manual_seed(3);
      const Tensor start = at::randn({3, 1000}), gradient = at::randn({3, 1000}).to(dtype);
      std::vector<Tensor> ended;
      for (const bool kernel : {false, true}) {
        Tensor parameter = start.to(dtype, /*non_blocking=*/false, /*copy=*/true);
        AdamW optimizer({parameter}, {.learning_rate = 1e-2, .weight_decay = 0.1, .states = states});
        if (kernel) kernelize(optimizer.update(), Mode::INFERENCE, {.strict = true});
        for (int step = 0; step < 3; ++step) {
          parameter.mutable_grad() = gradient * (step + 1);
          optimizer.step_clipped(gradient_norm_tensor(optimizer.parameters()), 1);
        }
        ended.push_back(parameter.to(at::kDouble));
      }
      // bfloat16 moments are rounded by chance: three steps of 2^-7 of an update of 0.01.
      const double tolerance = dtype == at::kBFloat16                        ? 0x1p-7
                               : states == OptimizerStates::kBFloat16Moments ? 1e-3
                                                                             : 1e-6;
      EXPECT_LE((ended[0] - ended[1]).abs().max().item<double>(), tolerance * 4);
      EXPECT_GT((ended[0] - start).abs().max().item<double>(), 0.02) << "the test could fail";
    }
  }
}

// A parameter that is transposed in memory has the update of a contiguous one, loaded states of another layout too.
TEST(AdamWStates, ATransposedParameterIsUpdatedInItsOrder) {
  for (const bool kernel : {false, true}) {
    Tensor transposed = at::randn({5, 7}).t(), plain = transposed.clone(at::MemoryFormat::Contiguous);
    ASSERT_FALSE(transposed.is_contiguous());
    AdamW one({transposed}, kOptions), other({plain}, kOptions);
    if (kernel) kernelize(one.update(), Mode::INFERENCE, {.strict = true});
    if (kernel) kernelize(other.update(), Mode::INFERENCE, {.strict = true});
    for (int step = 0; step < 3; ++step) {
      const Tensor gradient = at::randn({7, 5});
      transposed.mutable_grad() = gradient;
      plain.mutable_grad() = gradient;
      one.step();
      other.step();
      AdamWState& state = one.states()[0];
      if (step == 0) state.average = state.average.contiguous();
    }
    // torch rounds otherwise at the end of a tensor than in whole vectors; our kernel does not.
    const double tolerance = kernel ? 0 : 1e-6;
    EXPECT_TRUE(at::allclose(transposed, plain, tolerance, tolerance)) << kernel;
    const Tensor squares = one.states()[0].average_square;
    EXPECT_TRUE(at::allclose(squares, other.states()[0].average_square, tolerance, tolerance)) << kernel;
  }
  EXPECT_THROW(AdamW({at::ones({4, 4}).narrow(1, 0, 2)}, kOptions), Error) << "gaps";
}

TEST(AdamWStates, ANormThatIsNotFiniteUpdatesNothing) {
  Tensor parameter = at::ones({8});
  AdamW optimizer({parameter}, kOptions);
  parameter.mutable_grad() = at::full_like(parameter, NAN);
  optimizer.step_clipped(gradient_norm_tensor(optimizer.parameters()), 1);
  EXPECT_TRUE(at::equal(parameter, at::ones({8})));
  parameter.mutable_grad() = at::ones({8});
  optimizer.step_clipped(gradient_norm_tensor(optimizer.parameters()), 1);
  EXPECT_FALSE(at::equal(parameter, at::ones({8}))) << "the test could fail";
}

}  // namespace
}  // namespace hotswap
