#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/memory.h"
#include "hotswap/training/data.h"
#include "hotswap/training/finetune.h"
#include "hotswap/training/optimizer.h"
#include "hotswap/training/schedule.h"

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
  const double want =
      std::sqrt((a.grad().to(at::kDouble).square().sum() + b.grad().to(at::kDouble).square().sum()).item<double>());
  EXPECT_NEAR(clip_grad_norm_({a, b, without}, 0.5), want, 1e-5 * want);
  EXPECT_NEAR(gradient_norm({a, b, without}), 0.5, 1e-5);
  EXPECT_NEAR(clip_grad_norm_({a, b}, 100.0), 0.5, 1e-5);  // below the limit: untouched
  EXPECT_NEAR(gradient_norm({a, b}), 0.5, 1e-5);
  EXPECT_EQ(gradient_norm({without}), 0);
  EXPECT_EQ(clip_factor(123, 0), 1);
}

TEST(Schedule, Shapes) {
  for (const auto schedule : {Schedule::kConstant, Schedule::kLinear, Schedule::kCosine}) {
    EXPECT_EQ(schedule_factor(schedule, 0, 10, 110), 0);
    EXPECT_EQ(schedule_factor(schedule, 5, 10, 110), 0.5);
    EXPECT_EQ(schedule_factor(schedule, 10, 10, 110), 1);
  }
  EXPECT_EQ(schedule_factor(Schedule::kConstant, 109, 10, 110), 1);
  EXPECT_NEAR(schedule_factor(Schedule::kLinear, 60, 10, 110), 0.5, 1e-12);
  EXPECT_NEAR(schedule_factor(Schedule::kCosine, 60, 10, 110), 0.5, 1e-12);
  EXPECT_NEAR(schedule_factor(Schedule::kCosine, 110, 10, 110), 0, 1e-12);
  EXPECT_EQ(schedule_from("cosine"), Schedule::kCosine);
  EXPECT_THROW(schedule_from("square"), Error);
}

TEST(Data, RowsInTheOrderOfTheStream) {
  std::vector<int64_t> stream(25);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int64_t>(i);
  const auto batches = batches_of(stream, {.rows = 2, .columns = 4});
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[1][1][0].item<int64_t>(), 12);
  EXPECT_EQ(batches_of(stream, {.rows = 2, .columns = 4}, 4)[3][0][0].item<int64_t>(), 0);  // starts again
  EXPECT_EQ(rows_of(stream, 17, 2, 4)[1][3].item<int64_t>(), 24);
  EXPECT_THROW(rows_of(stream, 18, 2, 4), Error);
  EXPECT_THROW(batches_of(stream, {.rows = 5, .columns = 6}), Error);
}

TEST(Finetune, LearnsAndReports) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(3);
  Tensor table = at::randn({8, 8});  // next-token logits by token
  const auto loss = [&](const Tensor& ids) {
    const Tensor logits = table.index({ids.flatten()}).log_softmax(-1);
    return -logits.select(1, 3).mean();  // "the next token is always 3"
  };
  std::vector<int64_t> stream(64 * 8);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int64_t>(i % 8);
  const auto batches = batches_of(stream, {.rows = 2, .columns = 4});
  int64_t called = 0;
  const auto before = evaluate(loss, {batches[0]});
  const auto result = finetune({table}, loss, batches, {.optimizer = {.learning_rate = 0.1}},
                               [&](const StepReport& report) { EXPECT_EQ(report.step, called++); });
  EXPECT_EQ(called, 64);
  EXPECT_NEAR(result.steps.front().loss, before, 1e-6);
  EXPECT_LT(result.steps.back().loss, 0.2 * before);
  EXPECT_GT(result.tokens_per_second(), 0);
  EXPECT_GT(result.peak_memory, 1 << 20);
  EXPECT_THROW(finetune({table}, [&](const Tensor&) { return table.sum() * NAN; }, batches, {}), Error);
}

TEST(Memory, PeakIsResettableAndSeesLargeTensors) {
  if (!reset_peak_memory()) GTEST_SKIP() << "/proc/self/clear_refs is not writable here";
  const int64_t before = peak_memory();
  { const Tensor large = at::ones({64 << 20}); }  // 256 MiB
  EXPECT_GT(peak_memory() - before, 200 << 20);
  ASSERT_TRUE(reset_peak_memory());
  EXPECT_LT(peak_memory() - before, 100 << 20);
}

}  // namespace
}  // namespace hotswap
