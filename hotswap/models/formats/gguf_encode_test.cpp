#include "hotswap/models/formats/gguf_encode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using at::Tensor;
using test_support::made_data;
using test_support::message_of;

const GgufType& type_of(const std::string& name) { return *find_gguf_type(name); }

// What a file has after the weights were written into it as that type.
Tensor round_trip(const Tensor& weights, const GgufType& type) {
  const Tensor from = weights.to(at::kFloat).contiguous().view({-1, type.block});
  Tensor blocks =
      at::empty({from.size(0), static_cast<int64_t>(type.block_size)}, at::TensorOptions().dtype(at::kByte));
  encode({.type = type,
          .from = from.const_data_ptr<float>(),
          .to = blocks.mutable_data_ptr<uint8_t>(),
          .numel = from.numel()});
  return dequantised(blocks, type, type.block, at::kFloat).view(weights.sizes());
}

double length_of(const Tensor& x) { return x.to(at::kDouble).norm().item<double>(); }
double relative_error(const Tensor& weights, const GgufType& type) {
  return length_of(round_trip(weights, type) - weights) / length_of(weights);
}

constexpr const char* kQuantised[] = {"Q8_0", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};

// The error of b bits over the range of a normal sample of a group: its step over the square root of 12. The limits are
// a tenth above what was measured for these very sizes.
TEST(GgufEncode, NormalWeightsComeBackAsNearAsTheirBitsAllow) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  const Tensor weights = at::randn({64, 1024});
  for (const auto& [name, limit] : {std::pair("Q8_0", .0062), std::pair("Q6_K", .021), std::pair("Q5_K", .037),
                                    std::pair("Q5_0", .047), std::pair("Q5_1", .040), std::pair("Q4_K", .077)}) {
    for (const double spread : {1., .02, 1e-3}) {
      EXPECT_LT(relative_error(weights * spread, type_of(name)), limit) << name << " " << spread;
    }
  }
}

// Groups whose range is nothing, or is on one side of 0: each is its own group of every type.
TEST(GgufEncode, GroupsOfOneValueKeepIt) {
  for (const char* name : kQuantised) {
    for (const float value : {1.F, -1.F, .03F, -.03F, 2e-4F, -2e-4F, 300.F}) {
      const Tensor weights = at::full({2, 256}, value);
      EXPECT_LT(relative_error(weights, type_of(name)), .02) << name << " " << value;
    }
    EXPECT_EQ(length_of(round_trip(at::zeros({2, 256}), type_of(name))), 0) << name;
  }
}

TEST(GgufEncode, GroupsOfOneSignAndOfDifferentKindsInOneBlock) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  const Tensor normal = at::randn({1, 32});
  const Tensor block = at::cat({normal, normal.abs() + .5, -normal.abs() - .5, at::zeros({1, 32}),
                                at::full({1, 32}, 1.), at::full({1, 32}, -1.), normal * .1, normal * .5 + 1},
                               1);
  for (const char* name : kQuantised) {
    const Tensor back = round_trip(block, type_of(name));
    for (int64_t g = 0; g < 8; ++g) {
      const Tensor group = block.narrow(1, 32 * g, 32), got = back.narrow(1, 32 * g, 32);
      // Of the whole block's greatest, which sets the steps of scales that groups share.
      EXPECT_LT(length_of(got - group) / std::sqrt(32.), .17) << name << " group " << g;
      EXPECT_GE(length_of(got), length_of(group) > 1 ? .8 * length_of(group) : 0) << name << " group " << g;
    }
    EXPECT_LT(length_of(back - block) / length_of(block), .09) << name;
  }
}

// Scales below the least normal half, 6e-5, have few digits; the least of all is 6e-8.
TEST(GgufEncode, TinyWeightsDoNotVanish) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  const Tensor weights = at::randn({16, 1024});
  for (const char* name : kQuantised) {
    for (const double spread : {1e-4, 1e-5}) {
      EXPECT_LT(relative_error(weights * spread, type_of(name)), spread < 5e-5 ? .12 : .09) << name << " " << spread;
    }
    EXPECT_LT(relative_error(weights * 3e-7, type_of(name)), 1.0001) << name;  // never worse than all zeros
    EXPECT_TRUE(at::isfinite(round_trip(weights * 1e-30, type_of(name))).all().item<bool>()) << name;
  }
}

TEST(GgufEncode, IsNoWorseThanLlamaCppsOwnQuantiser) {
  if (const auto why = test_support::lacking_imports("gguf")) GTEST_SKIP() << *why;
  const auto& root = made_data("models/formats/gguf_encode_oracle.py");
  for (const char* name : {"Q8_0", "Q5_0", "Q5_1"}) {
    const auto read = [&](const std::string& end) {
      const std::string bytes = read_file(root / (std::string(name) + end));
      Tensor values =
          at::empty({static_cast<int64_t>(bytes.size()) / 1024, 256}, at::TensorOptions().dtype(at::kFloat));
      std::memcpy(values.mutable_data_ptr(), bytes.data(), values.nbytes());
      return values;
    };
    const Tensor weights = read(".from.f32"), theirs = read(".theirs.f32"), ours = round_trip(weights, type_of(name));
    ASSERT_GT(weights.size(0), 300);
    for (int64_t row = 0; row < weights.size(0); ++row) {
      const double limit = length_of(theirs[row] - weights[row]);
      // A product may be rounded to the other of two codes that are equally near.
      if (!std::isfinite(limit)) continue;
      EXPECT_LE(length_of(ours[row] - weights[row]), limit * (1 + 1e-5)) << name << " row " << row;
    }
  }
}

TEST(GgufEncode, RefusesTypesThatItDoesNotWriteAndPartsOfBlocks) {
  const Tensor weights = at::zeros({300});
  uint8_t to[1024];
  const auto refusal = [&](const char* type, int64_t numel) {
    return message_of(
        [&] { encode({.type = type_of(type), .from = weights.const_data_ptr<float>(), .to = to, .numel = numel}); });
  };
  EXPECT_NE(refusal("Q2_K", 256).find("F32, F16, Q8_0, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K; got 256 weights as Q2_K"),
            std::string::npos);
  EXPECT_NE(refusal("Q4_K", 300).find("got 300 weights as Q4_K"), std::string::npos);
  EXPECT_FALSE(can_encode(type_of("Q2_K")));
  EXPECT_TRUE(can_encode(type_of("Q6_K")));
}

}  // namespace
}  // namespace hotswap
