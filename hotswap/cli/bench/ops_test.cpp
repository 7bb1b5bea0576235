#include "hotswap/cli/bench/ops.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/cli/bench/cases.h"

namespace hotswap {
namespace {

// What is no number fails every bound that it is held against; taken into a maximum it would pass them all.
TEST(RelativeDifference, OfOneShapeAndOfNumbersOnly) {
  const at::Tensor want = at::tensor({3.f, 4.f});
  EXPECT_EQ(relative_difference(want, want), 0);
  EXPECT_DOUBLE_EQ(relative_difference(at::tensor({3.f, 5.f}), want), 0.2);
  EXPECT_DOUBLE_EQ(relative_difference(at::tensor({0.f, 2.f}), at::full({2}, 0.f)), 2) << "of zeros: as it is";
  EXPECT_TRUE(std::isnan(relative_difference(at::tensor({3.f}), want)));
  EXPECT_TRUE(std::isnan(relative_difference(at::tensor({3.f, NAN}), want)));
  EXPECT_TRUE(std::isnan(relative_difference(at::tensor({3.f, INFINITY}), want)));
}

// `hotswap bench` without names: whatever a package brings, its contract's example has arguments for each of its ops.
TEST(BenchOps, EveryOneIsCheckedAgainstTorch) {
  ASSERT_GT(bench_ops().size(), 40u);
  for (const std::string& op : bench_ops()) {
    const OpResult result = bench_op(make_case(op, {.large = false, .dtype = at::kFloat}), {.seconds = 1e-3});
    EXPECT_LT(result.error, 1e-4) << op;
    EXPECT_GT(result.speedup(), 0) << op;
  }
}

}  // namespace
}  // namespace hotswap
