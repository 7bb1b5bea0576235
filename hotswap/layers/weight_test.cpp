// Weight formats against loops over their elements in float64, adapters against their formula, and what a fused op may
// take instead of a Linear.
#include "hotswap/layers/weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/linear.h"

namespace hotswap {
namespace {

using test_support::message_of;

constexpr int64_t kOut = 6, kIn = 8;

double at_of(const Tensor& t, int64_t row, int64_t column) { return t[row][column].item<double>(); }

// The formula of weight.h, one element at a time.
Tensor decoded_by_loops(const Weight& w, const std::function<double(int64_t row, int64_t column)>& code) {
  Tensor result = at::zeros({kOut, kIn}, at::kDouble);
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      const auto shared = [&](const Tensor& t, double otherwise) {
        if (!t.defined()) return otherwise;
        if (t.numel() == 1) return t.item<double>();
        const int64_t group = t.size(1) == 1 ? 0 : w.order.defined() ? w.order[i].item<int64_t>() : i / w.group;
        return at_of(t, t.size(0) == 1 ? 0 : o / w.group_rows, group);
      };
      const double global = w.global_scale.defined() ? w.global_scale.item<double>() : 1;
      result[o][i] = (code(o, i) - shared(w.zeros, 0)) * shared(w.scales, 1) * global;
    }
  }
  return result;
}

double nibble(const Tensor& data, int64_t o, int64_t i) {
  const auto byte = data[o][i / 2].item<int64_t>();
  return static_cast<double>(i % 2 == 0 ? byte & 15 : byte >> 4);
}

TEST(WeightFormats, AreTheirFormulaElementByElement) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  const Tensor bytes = at::randint(0, 256, {kOut, kIn / 2}, at::kByte);
  const Tensor signed_bytes = at::randint(-128, 128, {kOut, kIn}, at::kChar);
  const Tensor scales = at::rand({kOut, kIn / 4}, at::kDouble), zeros = at::randint(0, 16, {kOut, kIn / 4}, at::kByte);
  const Tensor table = at::randn({16}, at::kDouble), shuffled = at::tensor({1, 0, 0, 1, 1, 0, 1, 0}, at::kInt);
  struct Case {
    const char* what;
    Weight weight;
    std::function<double(int64_t, int64_t)> code;
  };
  const auto by_nibble = [&](int64_t o, int64_t i) { return nibble(bytes, o, i); };
  const auto by_byte = [&](int64_t o, int64_t i) { return at_of(signed_bytes, o, i); };
  const auto by_table = [&](int64_t o, int64_t i) {
    return table[static_cast<int64_t>(nibble(bytes, o, i))].item<double>();
  };
  const std::vector<int64_t> shape = {kOut, kIn};
  const std::vector<Case> cases = {
      {"int4 in groups of 4 with zeros",
       {.format = WeightFormat::kInt4,
        .data = bytes,
        .scales = scales,
        .zeros = zeros,
        .group = 4,
        .logical_shape = shape},
       by_nibble},
      {"int4 in the order of its activations",
       {.format = WeightFormat::kInt4,
        .data = bytes,
        .scales = scales,
        .zeros = zeros,
        .order = shuffled,
        .group = 4,
        .logical_shape = shape},
       by_nibble},
      {"int8, a scale a row",
       {.format = WeightFormat::kInt8,
        .data = signed_bytes,
        .scales = at::rand({kOut, 1}, at::kDouble),
        .logical_shape = shape},
       by_byte},
      {"int8, one scale",
       {.format = WeightFormat::kInt8,
        .data = signed_bytes,
        .scales = at::rand({1}, at::kDouble),
        .logical_shape = shape},
       by_byte},
      {"blocks of 4 rows and 4 columns, the last cut",
       {.format = WeightFormat::kInt8,
        .data = signed_bytes,
        .scales = at::rand({2, 2}, at::kDouble),
        .group = 4,
        .group_rows = 4,
        .logical_shape = shape},
       by_byte},
      {"a table of 16 with two scales",
       {.format = WeightFormat::kTable16,
        .data = bytes,
        .scales = scales,
        .global_scale = at::rand({1}, at::kDouble),
        .table = table,
        .group = 4,
        .logical_shape = shape},
       by_table},
  };
  for (const Case& c : cases) {
    const Tensor expected = decoded_by_loops(c.weight, c.code);
    EXPECT_TRUE(at::equal(c.weight.dequantised(at::kDouble), expected)) << c.what;
    EXPECT_EQ(c.weight.rows(), kOut);
    EXPECT_EQ(c.weight.columns(), kIn);
    // The stock product of it is that of its elements.
    const Tensor x = at::randn({3, kIn}, at::kDouble);
    EXPECT_LE((stock::packed_linear(x, c.weight, std::nullopt) - at::linear(x, expected)).abs().max().item<double>(),
              1e-12)
        << c.what;
    const Tensor some = at::tensor({4, 1}, at::kLong);
    const auto rows = c.weight.with_rows([&](const Tensor& part) { return part.index_select(0, some); });
    EXPECT_EQ(rows.has_value(), c.weight.group_rows == 1) << c.what;
    if (!rows) continue;
    EXPECT_TRUE(at::equal(rows->dequantised(at::kDouble), expected.index_select(0, some))) << c.what;
  }
}

TEST(WeightFormats, E4m3IsItsValueTimesItsScale) {
  const Tensor values = at::tensor({0.5, -448.0, 1.125, 0.001953125}, at::kFloat).view({2, 2});
  const Weight weight{.format = WeightFormat::kE4m3,
                      .data = values.to(at::kFloat8_e4m3fn),
                      .scales = at::tensor({2.0, 0.25}, at::kDouble).view({2, 1}),
                      .logical_shape = {2, 2}};
  EXPECT_TRUE(at::equal(weight.dequantised(at::kDouble), values.to(at::kDouble) * weight.scales));
}

TEST(WeightFormats, HaveNamesThatLeadBack) {
  for (const WeightFormat format :
       {WeightFormat::kPlain, WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ5_0,
        WeightFormat::kQ4_K, WeightFormat::kQ5_K, WeightFormat::kQ6_K, WeightFormat::kInt8, WeightFormat::kInt4,
        WeightFormat::kE4m3, WeightFormat::kTable16}) {
    EXPECT_EQ(weight_format_of(name_of(format)), format);
  }
  EXPECT_FALSE(weight_format_of("q9_9").has_value());
}

TEST(WeightFormats, TheBytesOfARowSayWhichBlocksTheyAre) {
  EXPECT_EQ(weight_of(at::zeros({2, 68}, at::kByte), 64).format, WeightFormat::kQ8_0);
  EXPECT_EQ(weight_of(at::zeros({2, 36}, at::kByte), 64).format, WeightFormat::kQ4_0);
  EXPECT_EQ(weight_of(at::zeros({2, 40}, at::kByte), 64).format, WeightFormat::kQ4_1);
  EXPECT_TRUE(weight_of(at::zeros({2, 64}), 64).plain());
  EXPECT_NE(message_of([] { weight_of(at::zeros({2, 41}, at::kByte), 64); }).find("[2, 41] bytes"), std::string::npos);
}

TEST(EncodedWeights, KeepTheirTypesAndLearnNothing) {
  Linear linear(4, 2, /*with_bias=*/true);
  linear.weight = {.format = WeightFormat::kE4m3,
                   .data = at::zeros({2, 4}).to(at::kFloat8_e4m3fn),
                   .scales = at::rand({2, 1}, at::kFloat),
                   .logical_shape = {2, 4}};
  linear.bias = at::zeros({2});
  linear.to(at::kDouble, at::kCPU);
  linear.requires_grad(true);
  EXPECT_EQ(linear.data().scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(linear.weight.scales.scalar_type(), at::kFloat);
  EXPECT_EQ(linear.bias.scalar_type(), at::kDouble);
  EXPECT_TRUE(linear.bias.requires_grad());
  EXPECT_FALSE(linear.data().requires_grad());
}

struct Adapted : testing::Test {
  Adapted() {
    at::manual_seed(test_support::test_seed());
    linear.weight.data = at::randn({kOut, kIn}, at::kDouble);
    linear.bias = at::randn({kOut}, at::kDouble);
  }
  Adapter adapter(int64_t rank = 3, at::ScalarType dtype = at::kDouble) const {
    return {.a = at::randn({rank, kIn}, dtype), .b = at::randn({kOut, rank}, dtype), .scale = 0.5};
  }
  Tensor formula(const Tensor& x, const Adapter& lora) const {
    const Tensor sum = linear.data() + lora.scale * lora.b.to(at::kDouble).matmul(lora.a.to(at::kDouble));
    return x.to(at::kDouble).matmul(sum.t()) + linear.bias;
  }
  Linear linear{kIn, kOut, /*with_bias=*/true};
  Tensor x = at::randn({2, 3, kIn}, at::kDouble);
};

TEST_F(Adapted, IsTheMergedProductInFloat64) {
  const Tensor before = linear.forward(x);
  const Adapter lora = adapter();
  linear.set_adapter(lora);
  EXPECT_LE((linear.forward(x) - formula(x, lora)).abs().max().item<double>(), 1e-13);
  EXPECT_LE((linear.without_bias(x) - (formula(x, lora) - linear.bias)).abs().max().item<double>(), 1e-13);
  linear.set_adapter(std::nullopt);
  EXPECT_TRUE(at::equal(linear.forward(x), before));
}

TEST_F(Adapted, LearnsAloneBesideAFrozenWeight) {
  const Adapter lora = adapter();
  const Tensor a = lora.a, b = lora.b, dy = at::randn({2, 3, kOut}, at::kDouble);
  a.set_requires_grad(true), b.set_requires_grad(true);
  linear.set_adapter(lora);
  linear.forward(x).backward(dy);
  const Tensor flat_x = x.view({-1, kIn}), flat_dy = dy.view({-1, kOut});
  const Tensor da = lora.scale * b.detach().t().matmul(flat_dy.t()).matmul(flat_x);
  const Tensor db = lora.scale * flat_dy.t().matmul(flat_x.matmul(a.detach().t()));
  EXPECT_LE((a.grad() - da).abs().max().item<double>(), 1e-12);
  EXPECT_LE((b.grad() - db).abs().max().item<double>(), 1e-12);
  EXPECT_FALSE(linear.data().requires_grad());
}

// A float32 adapter beside bfloat16: one rounding of the sum, whose base product was rounded before.
TEST_F(Adapted, IsSummedInTheWiderType) {
  linear.weight.data = linear.data().to(at::kBFloat16);
  linear.bias = linear.bias.to(at::kBFloat16);
  const Tensor narrow = x.to(at::kBFloat16);
  const Tensor base = linear.forward(narrow);
  const Adapter lora = adapter(2, at::kFloat);
  linear.set_adapter(lora);
  const Tensor added = narrow.to(at::kFloat).matmul(lora.a.t()).matmul(lora.b.t());
  EXPECT_TRUE(at::equal(linear.forward(narrow), (base.to(at::kFloat) + added * 0.5).to(at::kBFloat16)));
}

TEST_F(Adapted, OfAnEncodedWeight) {
  Weight encoded{.format = WeightFormat::kInt8,
                 .data = at::randint(-128, 128, {kOut, kIn}, at::kChar),
                 .scales = at::rand({kOut, 1}, at::kDouble),
                 .logical_shape = {kOut, kIn}};
  const Tensor plain = encoded.dequantised(at::kDouble);
  linear.weight = encoded;
  linear.tensors_changed();
  const Adapter lora = adapter();
  linear.set_adapter(lora);
  const Tensor sum = plain + lora.scale * lora.b.matmul(lora.a);
  EXPECT_LE((linear.forward(x) - at::linear(x, sum, linear.bias)).abs().max().item<double>(), 1e-11);
}

TEST_F(Adapted, RefusesShapesOfAnotherLayer) {
  const std::string error = message_of([&] {
    linear.set_adapter(Adapter{.a = at::zeros({3, 9}), .b = at::zeros({kOut, 3})});
  });
  EXPECT_NE(error.find("lora_A [rank, 8] and lora_B [6, rank]"), std::string::npos) << error;
  EXPECT_FALSE(linear.adapter().has_value());
}

TEST_F(Adapted, FusedOpsStayAway) {
  Linear other(kIn, kOut, /*with_bias=*/false);
  SlotNeeds needs{.features = {"window"}};
  const auto fuse = [&] { return fused_products({&linear, &other}, needs).fuse; };
  EXPECT_TRUE(all_plain({&linear, &other}) && fuse());
  EXPECT_EQ(needs.features, std::vector<std::string>{"window"});
  linear.set_adapter(adapter());
  EXPECT_FALSE(all_plain({&linear, &other}) || fuse());
  EXPECT_EQ(needs.features.size(), 2u);
  EXPECT_FALSE(fuse());
  EXPECT_EQ(needs.features.size(), 2u) << "the feature that no kernel has, once";
  EXPECT_FALSE(linear.trains_by_torch(at::kDouble));
  linear.set_adapter(std::nullopt);
  other.weight.shard = Shard{.dim = 0, .begin = 0, .size = kOut, .whole = 2 * kOut};
  EXPECT_FALSE(all_plain({&linear, &other}) || fuse());
  other.weight = {
      .format = WeightFormat::kInt8, .data = at::zeros({kOut, kIn}, at::kChar), .logical_shape = {kOut, kIn}};
  EXPECT_FALSE(all_plain({&linear, &other}));
  EXPECT_TRUE(fuse());
  EXPECT_EQ(fused_products({&linear, &other}, needs).formats, "plain,int8");
  EXPECT_EQ(needs.features, std::vector<std::string>{"window"});
  EXPECT_EQ(needs.weights, std::vector<std::string>{"int8"});
}

// Weights of layers that read the same x, one after another: the same tensors with the same values.
TEST(JoinedWeights, GiveOneProductOfViews) {
  const at::NoGradGuard no_grad;
  Linear a(kIn, kOut, false), b(kIn, 3, false), c(kIn, 1, false);
  const std::vector<const Linear*> layers = {&a, &b, &c};
  std::vector<Tensor> before, same;
  for (Linear* layer : {&a, &b, &c}) {
    layer->weight.data = at::randn({layer->weight.data.size(0), kIn});
    before.push_back(layer->data().clone());
    same.push_back(layer->data());
  }
  const Tensor x = at::randn({5, 1, kIn});
  EXPECT_FALSE(Linear::products(layers, x)[1].is_alias_of(Linear::products(layers, x)[0]));
  join_weights({&a, &b, &c});
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_TRUE(at::equal(layers[i]->data(), before[i]));
    EXPECT_EQ(same[i].const_data_ptr(), layers[i]->data().const_data_ptr()) << "it is still the same tensor";
  }
  const auto expect_products = [&](bool views, const char* what) {
    const std::vector<Tensor> made = Linear::products(layers, x);
    EXPECT_EQ(made[2].is_alias_of(made[0]), views) << what;
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_LE((made[i] - layers[i]->forward(x)).abs().max().item<double>(), 1e-5) << what << i;
    }
  };
  expect_products(true, "joined");
  const void* at = a.data().const_data_ptr();
  join_weights({&a, &b, &c});
  EXPECT_EQ(a.data().const_data_ptr(), at) << "once is enough";
  b.set_adapter(Adapter{.a = at::randn({2, kIn}), .b = at::randn({3, 2})});
  expect_products(false, "an adapter on one of them");
  b.set_adapter(std::nullopt);
  c.weight.data = at::randn({1, kIn});
  expect_products(false, "one was replaced");
  const at::AutoGradMode with_gradients(true);
  join_weights({&a, &b, &c});
  expect_products(false, "gradients");
}

}  // namespace
}  // namespace hotswap
