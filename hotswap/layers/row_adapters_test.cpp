// Rows of one batch with adapters of their own: each is what the layer with that one adapter computes, to the bit
// whatever the rows beside it.
#include "hotswap/layers/row_adapters.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/linear.h"

namespace hotswap {
namespace {

class RowAdaptersTest : public testing::Test {
 protected:
  RowAdaptersTest()
      : trace_(__FILE__, __LINE__, cat("seed ", test_support::test_seed())),
        generator_(at::make_generator<at::CPUGeneratorImpl>(test_support::test_seed())) {}
  Tensor drawn(at::IntArrayRef shape) { return at::randn(shape, generator_); }
  Adapter adapter(int64_t in, int64_t out, int64_t rank) {
    return {.a = drawn({rank, in}), .b = drawn({out, rank}), .scale = 0.25 * static_cast<double>(rank)};
  }
  void expect_rows_of_their_own(int64_t in, int64_t out, int64_t tokens);

 private:
  testing::ScopedTrace trace_;
  at::Generator generator_;
};

// Of layers whose own product is 0, so that all bits are the adapters'. Wide ones go by a library's products.
void RowAdaptersTest::expect_rows_of_their_own(int64_t in, int64_t out, int64_t tokens) {
  Linear linear(in, out, /*with_bias=*/false);
  linear.weight.data = at::zeros({out, in});
  const std::vector<Adapter> adapters = {adapter(in, out, 8), adapter(in, out, 3)};
  for (size_t i = 0; i < adapters.size(); ++i) linear.set_row_adapter(static_cast<int64_t>(i), adapters[i]);
  const std::vector<int64_t> of_rows = {1, -1, 0, 0, 1, -1, 1};
  const Tensor x = drawn({7, tokens, in});
  Tensor all;
  {
    const RowAdapters rows(of_rows);
    all = linear.forward(x);
  }
  for (int64_t row = 0; row < 7; ++row) {
    const Tensor own = x.narrow(0, row, 1);
    const RowAdapters rows({of_rows[row]});
    const Tensor single = linear.forward(own);
    EXPECT_TRUE(at::equal(all.narrow(0, row, 1), single)) << row << " of " << in << " x " << tokens;
    if (of_rows[row] < 0) {
      EXPECT_TRUE(at::equal(single, at::zeros_like(single)));
      continue;
    }
    const Tensor expected =
        own.to(at::kDouble).matmul(adapters[of_rows[row]].merged(at::zeros({out, in}, at::kDouble)).transpose(0, 1));
    EXPECT_LE((single - expected).abs().max().item<double>(), 2e-5 * expected.abs().max().item<double>());
  }
  EXPECT_TRUE(at::equal(linear.forward(x), at::zeros({7, tokens, out}))) << "outside of such a forward";
}

TEST_F(RowAdaptersTest, ARowHasItsBitsInAnyCompany) {
  const c10::InferenceMode inference;
  for (const int64_t tokens : {1, 5}) {
    expect_rows_of_their_own(17, 9, tokens);
    expect_rows_of_their_own(576, 192, tokens);
    expect_rows_of_their_own(1536, 576, tokens);
  }
}

TEST_F(RowAdaptersTest, OfAnEmbedding) {
  const c10::InferenceMode inference;
  Embedding table(50, 24);
  table.weight.data = drawn({50, 24});
  const Adapter own = adapter(50, 24, 4);
  table.set_row_adapter(0, own);
  const Tensor ids = at::randint(50, {3, 2}, at::kLong);
  const Tensor plain = table.forward(ids, at::kFloat);
  const RowAdapters rows({-1, 0, -1});
  EXPECT_FALSE(table.plain());
  const Tensor y = table.forward(ids, at::kFloat);
  EXPECT_TRUE(at::equal(y[0], plain[0]));
  EXPECT_TRUE(at::equal(y[2], plain[2]));
  const Tensor expected = own.merged(table.weight.data.t()).t().index_select(0, ids[1]);
  EXPECT_LE((y[1] - expected).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(at::equal(table.forward(ids.view({6}), at::kFloat).view_as(y), y)) << "ids without a dimension of rows";
}

TEST_F(RowAdaptersTest, AreThereForOneForwardOnly) {
  EXPECT_FALSE(RowAdapters::any());
  {
    const RowAdapters outer({0, -1});
    EXPECT_TRUE(RowAdapters::any());
    {
      const RowAdapters none({-1, -1});
      EXPECT_FALSE(RowAdapters::any());
    }
    EXPECT_TRUE(RowAdapters::any());
    EXPECT_NE(test_support::message_of([&] {
                Linear linear(4, 4, false);
                linear.weight.data = at::zeros({4, 4});
                linear.set_row_adapter(0, adapter(4, 4, 1));
                linear.forward(at::zeros({3, 4}));
              }).find("a batch of 2 rows"),
              std::string::npos);
  }
  EXPECT_FALSE(RowAdapters::any());
}

}  // namespace
}  // namespace hotswap
