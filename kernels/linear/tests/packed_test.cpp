// Products with packed weights, against float64 of the numbers that the blocks mean.
#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/packed_weight.h"
#include "kernels/common/testing/testing.h"

namespace kernels::testing {
namespace {

constexpr at::ScalarType kPackedDTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// On the tests' device, whatever the arguments are on; the result comes to the CPU.
Tensor call(const std::string& packing, const Tensor& x, const Tensor& bytes, const Tensor& bias = {}) {
  std::string format = packing;
  for (char& c : format) c = char(std::tolower(c));
  const c10::IValue none;
  const auto there = [](const Tensor& t) { return t.to(device()); };
  return package()
      .call("packed_linear", there(x), there(bytes), none, none, none, none, none, int64_t(0), int64_t(1), format,
            x.size(-1), bias.defined() ? c10::IValue(there(bias)) : none)[0]
      .cpu();
}

// linear.h states the bound; number by number.
void expect_within_bound(const Tensor& y, const Tensor& x, const PackedWeight& w, const Tensor& bias,
                         const std::string& what) {
  const Tensor wide = x.cpu().to(at::kDouble),
               wide_bias = bias.defined() ? bias.cpu().to(at::kDouble) : at::zeros({1}, at::kDouble);
  const Tensor want = wide.matmul(w.numbers.t()) + wide_bias;
  const Tensor terms = wide.abs().matmul(w.numbers.t().abs()) + wide_bias.abs();
  const double last = y.scalar_type() == at::kFloat ? 0x1p-24 : y.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const double tiny = y.scalar_type() == at::kHalf ? 0x1p-25 : 0;  // where float16 has no more bits to lose
  // On a GPU more rows than the kernel takes are multiplied by the weights rounded to their type.
  const double weights = on_cuda() && x.size(0) > 32 ? last : 0;
  const Tensor bound =
      want.abs() * last * (1 + 0x1p-7) + terms * (weights + (double(x.size(-1)) / 8 + 8) * 0x1p-24) + tiny;
  EXPECT_TRUE(((y.to(at::kDouble) - want).abs() <= bound).all().item<bool>()) << what;
}

// Rows on both sides of what is streamed, one block and many, outputs that fill no step and no tile; then rows beyond
// those for which a panel of weights is decoded, outputs beyond a panel's, and slabs of which the last is short.
TEST(PackedLinear, IsWithinItsBoundOfFloat64) {
  using Shapes = std::vector<std::pair<int64_t, int64_t>>;
  const Shapes few = {{1, 32}, {7, 64}, {35, 576}, {19, 1056}, {33, 4352}}, many = {{1, 64}, {103, 1056}};
  for (const PackingFormula& each : packings()) {
    const std::string packing = each.name;
    for (const auto dtype : kPackedDTypes) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 9, 16, 17, 33, 70, 515}) {
        for (const auto& [out, least] : rows > 33 ? many : few) {
          const int64_t in = (least + each.block - 1) / each.block * each.block;
          for (const bool with_bias : {false, true}) {
            const PackedWeight w = random_weight(packing, out, in);
            const Tensor x = random_tensor({rows, in}, dtype),
                         bias = with_bias ? random_tensor({out}, dtype) : Tensor();
            const int64_t before = package().call_count("packed_linear");
            const Tensor y = call(packing, x, w.bytes, bias);
            EXPECT_EQ(package().call_count("packed_linear"), before + 1);
            ASSERT_EQ(y.scalar_type(), dtype);
            ASSERT_EQ(y.sizes(), at::IntArrayRef({rows, out}));
            expect_within_bound(y, x, w, bias,
                                packing + ", rows " + std::to_string(rows) + ", in " + std::to_string(in));
          }
        }
      }
    }
  }
}

// What a block means is exact: one weight at a time comes out as its dequantised form has it.
TEST(PackedLinear, EachWeightIsItsDequantisedFormBitForBit) {
  for (const PackingFormula& each : packings()) {
    const int64_t in = std::max<int64_t>(64, each.block);
    const PackedWeight w = random_weight(each.name, 5, in);
    for (const auto dtype : kPackedDTypes) {  // in 16 bits rounded once
      const Tensor expected = w.numbers.t().to(at::kFloat).to(dtype).contiguous(), one = at::eye(in).to(dtype);
      expect_equal(call(each.name, one, w.bytes), expected, each.name);
      for (int64_t i = 0; i < in; ++i) {
        expect_equal(call(each.name, one.narrow(0, i, 1), w.bytes), expected.narrow(0, i, 1), each.name);
      }
    }
  }
}

TEST(PackedLinear, ARowHasTheSameBitsInAnyCompany) {
  const int64_t all_rows = on_cuda() ? 4 : 600;  // a GPU has a kernel for up to 4 rows
  for (const PackingFormula& each : packings()) {
    const PackedWeight w = random_weight(each.name, 103, 2304);
    const Tensor x = random_tensor({all_rows, 2304}, at::kBFloat16), all = call(each.name, x, w.bytes);
    for (const int64_t row : {0, 1, 2, 3, 4, 5, 10, 31, 32, 511, 512, 517, 598, 599}) {
      if (row >= all_rows) break;
      expect_equal(call(each.name, x.narrow(0, row, 1), w.bytes), all.narrow(0, row, 1), "row " + std::to_string(row));
    }
    for (const int64_t rows : {2, 3, 4, 5, 6, 7, 11, 33, 66, 513}) {
      if (rows > all_rows) break;
      expect_equal(call(each.name, x.narrow(0, 0, rows), w.bytes), all.narrow(0, 0, rows),
                   std::to_string(rows) + " rows");
    }
    expect_same_with_any_threads(
        [&] {
          return Tensors{call(each.name, x.narrow(0, 0, 2), w.bytes),
                         call(each.name, x.narrow(0, 0, std::min<int64_t>(70, all_rows)), w.bytes)};
        },
        each.name);
  }
}

TEST(PackedLinear, EveryLayoutGivesTheSame) {
  for (const auto dtype : kPackedDTypes) {
    const PackedWeight w = random_weight("Q4_0", 9, 64);
    for (const int64_t rows : {3, 6}) {
      const Tensor x = random_tensor({rows, 64}, dtype), want = call("Q4_0", x, w.bytes);
      for (const auto& [name, lay_out] : layouts()) {
        expect_equal(call("Q4_0", lay_out(x), w.bytes), want, std::string("x ") + name);
        expect_equal(call("Q4_0", x, lay_out(w.bytes.to(device()))), want, std::string("weight ") + name);
      }
    }
  }
}

TEST(PackedLinear, EmptyShapes) {
  const Tensor bytes = at::zeros({3, 34}, at::kByte);
  EXPECT_EQ(call("Q8_0", at::zeros({0, 32}), bytes).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(call("Q4_0", at::zeros({2, 1, 32}), at::zeros({0, 18}, at::kByte)).sizes(), at::IntArrayRef({2, 1, 0}));
}

TEST(PackedLinear, RefusesWhatDoesNotFit) {
  const Tensor bytes = at::zeros({3, 40}, at::kByte);
  expect_refusal(
      [&] {
        call("Q4_1", at::zeros({1, 32}), bytes);
      },
      {"data [out, 20]", "blocks of 32 of q4_1", "[3, 40]"});
  expect_refusal([&] { call("Q4_1", at::zeros({1, 33}), bytes); }, {"blocks of 32", "[1, 33]"});
  expect_refusal([&] { call("Q4_1", at::zeros({1, 0}), bytes); }, {"blocks of 32"});
  expect_refusal([&] { call("Q4_1", at::zeros({1, 64}), at::zeros({3, 40})); }, {"uint8"});
  expect_refusal([&] { call("Q4_1", at::zeros({1, 64}), bytes, at::zeros({4})); }, {"expected bias [3]", "got [4]"});
  expect_refusal(
      [&] {
        call("Q4_1", at::zeros({1, 64}, at::kLong), bytes);
      },
      {"float32, bfloat16 or float16", "got int64"});
  expect_refusal([&] { call("Q4_K", at::zeros({1, 320}), at::zeros({3, 180}, at::kByte)); }, {"blocks of 256 of q4_k"});
  expect_refusal([&] { call("Q3_K", at::zeros({1, 256}), bytes); }, {"e4m3_g128 or mxfp4", "q3_k"});
}

}  // namespace
}  // namespace kernels::testing
