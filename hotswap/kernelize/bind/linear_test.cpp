// The slots of a Linear: linear/1 with the role argmax, and packed_linear in both of its versions.
#include "hotswap/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "hotswap/kernelize/bind/test_bind.h"
#include "hotswap/kernelize/contract/contract.h"

namespace hotswap {
namespace {

using test_support::bundled_layer;

// What a package had that was built for packed_linear/1: ggml's blocks as a bare tensor.
int64_t old_calls = 0;
Tensor old_packed_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  ++old_calls;
  return stock::packed_linear(x, weight_of(weight, x.size(-1)), bias);
}
TORCH_LIBRARY(hotswap_old_package, m) {
  m.def("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", &old_packed_linear);
}

Weight random_q8_0(int64_t out, int64_t in) {
  const Tensor scales = (at::rand({out, in / 32, 1}) * 0.01).to(at::kHalf).view(at::kByte);
  const Tensor codes = at::randint(0, 256, {out, in / 32, 32}, at::kByte);
  return {
      .format = WeightFormat::kQ8_0, .data = at::cat({scales, codes}, -1).view({out, -1}), .logical_shape = {out, in}};
}

SlotBase& only_slot(Linear& linear) {
  std::vector<SlotBase*> slots;
  linear.each_slot([&](const std::string&, SlotBase& slot) { slots.push_back(&slot); });
  EXPECT_EQ(slots.size(), 1U);
  return *slots.at(0);
}

TEST(BoundPackedLinear, BothContractsServeTheSlotWithTheSameResult) {
  const at::NoGradGuard no_grad;  // in training a frozen weight is dequantised
  Linear linear(64, 7, /*with_bias=*/true);
  linear.weight = random_q8_0(7, 64);
  linear.bias = at::randn({7});
  linear.tensors_changed();
  SlotBase& slot = only_slot(linear);
  EXPECT_EQ(slot.contract(), "packed_linear/2");
  EXPECT_EQ(slot.needs().weights, std::vector<std::string>{"q8_0"});
  const Tensor x = at::randn({3, 64}), stock = linear.forward(x);

  const PackageLayer& bundled = bundled_layer("linear", "PackedLinear");
  EXPECT_EQ(bundled.contract().name, "packed_linear/2");
  const int64_t before = op_calls("linear", "packed_linear");
  bundled.contract().bind(slot, bundled);
  EXPECT_LE((linear.forward(x) - stock).norm().item<double>(), 2e-6 * stock.norm().item<double>());
  EXPECT_EQ(op_calls("linear", "packed_linear") - before, 1);
  EXPECT_TRUE(linear.argmax() && linear.sample()) << "a head with an encoded weight chooses tokens by a kernel too";
  EXPECT_TRUE(at::equal(linear.largest(stock), stock.argmax(-1)));
  slot.unbind();
  EXPECT_FALSE(linear.argmax() || linear.sample());

  const Contract& first = *find_contract("packed_linear/1");
  EXPECT_EQ(first.slots(), slot.contract());
  const LayerOps old("old:PackedLinear", first, {{"forward", "hotswap_old_package::packed_linear"}}, false);
  first.bind(slot, old);
  EXPECT_TRUE(at::equal(linear.forward(x), stock));
  EXPECT_EQ(old_calls, 1);
  slot.unbind();
}

TEST(BoundLinear, ItsSlotFollowsTheWeight) {
  Linear linear(64, 7, /*with_bias=*/false);
  EXPECT_EQ(only_slot(linear).layer(), "Linear");
  linear.weight = random_q8_0(7, 64);
  linear.tensors_changed();
  EXPECT_EQ(only_slot(linear).layer(), "PackedLinear");
  linear.dequantise(at::kFloat);
  linear.tensors_changed();
  EXPECT_EQ(only_slot(linear).layer(), "Linear");
  EXPECT_TRUE(linear.plain() && linear.data().requires_grad());
}

TEST(BoundLinear, LooksForTheLargestByItsKernelsOp) {
  Linear head(8, 300, /*with_bias=*/false);
  SlotBase* slot = nullptr;
  head.each_slot([&](const std::string&, SlotBase& one) { slot = &one; });
  const Tensor x = at::randn({3, 300}), want = x.argmax(-1);
  const auto check = [&](int64_t calls) {
    const int64_t before = op_calls("linear", "largest_");
    EXPECT_TRUE(at::equal(head.largest(x), want));
    EXPECT_EQ(static_cast<bool>(head.argmax()), calls > 0);
    if (head.argmax()) {
      const Tensor out = at::zeros({3}, at::kLong), history = at::zeros({4, 3}, at::kLong);
      head.argmax()(out, x, history, at::ones({1}, at::kLong));
      EXPECT_TRUE(at::equal(out, want));
      EXPECT_TRUE(at::equal(history[1], want));
      EXPECT_EQ(history.ne(0).sum().item<int64_t>(), want.ne(0).sum().item<int64_t>());
    }
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
