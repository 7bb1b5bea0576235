#include "hotswap/cli/bench/ops.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace hotswap
