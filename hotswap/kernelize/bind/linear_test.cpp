// The op of linear/1 that looks for the largest of an output's numbers: a head has it while its kernel is bound.
#include "hotswap/layers/linear.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "hotswap/kernelize/bind/test_bind.h"

namespace hotswap {
namespace {

using test_support::bundled_layer;

TEST(BoundLinear, LooksForTheLargestByItsKernelsOp) {
  Linear head(8, 300, /*with_bias=*/false);
  SlotBase* slot = nullptr;
  head.each_slot([&](const std::string&, SlotBase& one) { slot = &one; });
  const Tensor x = at::randn({3, 300}), want = x.argmax(-1), place = at::zeros({3}, at::kLong);
  const auto check = [&](int64_t calls) {
    const int64_t before = op_calls("linear", "largest_");
    EXPECT_TRUE(at::equal(head.largest(x), want));
    const Tensor said = at::zeros({4, 3}, at::kLong), there = at::ones({1}, at::kLong);
    EXPECT_TRUE(head.largest(x, {place.zero_(), said, there}).is_same(place));
    EXPECT_TRUE(at::equal(place, want));
    EXPECT_TRUE(at::equal(said[1], want));
    EXPECT_EQ(said.ne(0).sum().item<int64_t>(), want.ne(0).sum().item<int64_t>());
    EXPECT_EQ(op_calls("linear", "largest_") - before, calls);
  };
  check(0);
  bundled_layer("linear", "Linear").contract().bind(*slot, bundled_layer("linear", "Linear"));
  check(2);
  slot->unbind();
  check(0);
}

}  // namespace
}  // namespace hotswap
