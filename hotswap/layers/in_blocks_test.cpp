// Blocks against the weights that they are made of, bit for bit, and what has no blocks.
#include "hotswap/layers/in_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

Tensor scales_of(int64_t rows, int64_t groups, at::ScalarType dtype) {
  return ((at::rand({rows, groups}) - 0.5) / 64).to(dtype);
}

Weight int4(int64_t out, int64_t in, int64_t group, at::ScalarType scale_dtype = at::kHalf) {
  const int64_t groups = group == 0 ? 1 : in / group;
  return {.format = WeightFormat::kInt4,
          .data = at::randint(0, 256, {out, in / 2}, at::kByte),
          .scales = scales_of(out, groups, scale_dtype),
          .zeros = at::randint(0, 17, {out, groups}, at::kShort),
          .group = group,
          .logical_shape = {out, in}};
}

Tensor e4m3_codes(int64_t out, int64_t in) {
  const Tensor codes = at::randint(0, 256, {out, in}, at::kByte);
  return codes.masked_fill(codes.bitwise_and(127).eq(127), 0).view(at::kFloat8_e4m3fn);
}

Weight e4m3(int64_t out, int64_t in, int64_t group_rows, int64_t group) {
  const int64_t rows = (out + group_rows - 1) / group_rows, groups = group == 0 ? 1 : in / group;
  return {.format = WeightFormat::kE4m3,
          .data = e4m3_codes(out, in),
          .scales = scales_of(rows, groups, at::kFloat),
          .group = group,
          .group_rows = group_rows,
          .logical_shape = {out, in}};
}

void expect_same(const Weight& weight, WeightFormat format, const std::string& what) {
  const auto blocks = in_blocks(weight);
  ASSERT_TRUE(blocks) << what;
  EXPECT_EQ(blocks->format, format) << what;
  EXPECT_EQ(blocks->logical_shape, weight.logical_shape) << what;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor want = weight.dequantised(dtype), got = blocks->dequantised(dtype);
    EXPECT_EQ(got.scalar_type(), dtype) << what;
    EXPECT_TRUE(at::equal(got, want)) << what << ", " << dtype;
  }
  const Tensor some = at::tensor({2, 0}, at::kLong);
  const auto rows = blocks->with_rows([&](const Tensor& part) { return part.index_select(0, some); });
  ASSERT_TRUE(rows) << what;
  EXPECT_TRUE(at::equal(rows->dequantised(at::kFloat), weight.dequantised(at::kFloat).index_select(0, some))) << what;
}

TEST(WeightBlocks, AreTheWeightBitForBit) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    expect_same(int4(5, 96, 32, dtype), WeightFormat::kInt4G32, "groups of 32");
    expect_same(int4(5, 192, 64, dtype), WeightFormat::kInt4G64, "groups of 64");
    expect_same(int4(5, 384, 128, dtype), WeightFormat::kInt4G128, "groups of 128");
    expect_same(int4(5, 512, 256, dtype), WeightFormat::kInt4G128, "groups of 256");
    expect_same(int4(5, 384, 0, dtype), WeightFormat::kInt4G128, "one group a row");
    expect_same(int4(5, 96, 0, dtype), WeightFormat::kInt4G32, "one group a short row");
  }
  Weight one = int4(4, 128, 0);
  one.scales = at::full({1}, 0.5), one.zeros = Tensor();
  expect_same(one, WeightFormat::kInt4G128, "one scale, no zeros");
  expect_same(e4m3(300, 256, 128, 128), WeightFormat::kE4m3G128, "blocks of 128 x 128, the last of fewer rows");
  expect_same(e4m3(7, 256, 1, 0), WeightFormat::kE4m3G128, "a scale a row");
  Weight whole = e4m3(7, 128, 1, 0);
  whole.scales = at::full({1}, 0.37);
  expect_same(whole, WeightFormat::kE4m3G128, "one scale");
}

TEST(WeightBlocks, WhatNoBlockHoldsHasNone) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  EXPECT_FALSE(in_blocks(int4(4, 96, 48))) << "groups that no block divides";
  EXPECT_FALSE(in_blocks(int4(4, 48, 0))) << "columns that no block divides";
  EXPECT_FALSE(in_blocks(int4(4, 128, 128, at::kFloat))) << "scales of 24 bits";
  EXPECT_FALSE(in_blocks(e4m3(4, 96, 1, 0))) << "columns that no block of 128 divides";
  EXPECT_FALSE(in_blocks({.data = at::rand({4, 128})})) << "a plain weight";
  Weight ordered = int4(4, 128, 32);
  ordered.order = at::arange(128, at::kInt).flip(0).div(32, /*rounding_mode=*/"floor").to(at::kInt);
  EXPECT_FALSE(in_blocks(ordered)) << "columns in an order of their own";
  Weight global = int4(4, 128, 32);
  global.global_scale = at::full({1}, 0.5);
  EXPECT_FALSE(in_blocks(global)) << "two scales";
  Weight infinite = int4(4, 128, 32);
  infinite.scales[1][2] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(in_blocks(infinite)) << "an infinite scale";
  Weight nan = e4m3(4, 128, 1, 0);
  nan.data.view(at::kByte)[3][5] = 255;
  EXPECT_FALSE(in_blocks(nan)) << "a code that is NaN";
}

}  // namespace
}  // namespace hotswap
