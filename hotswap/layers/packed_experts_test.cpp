// Experts of packed weights without a kernel, against their formula token by token in float64.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/experts.h"

namespace hotswap {
namespace {

using test_support::message_of;

constexpr WeightFormat kPackedFormatsOfExperts[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1,
                                                    WeightFormat::kQ5_0, WeightFormat::kQ4_K, WeightFormat::kQ5_K,
                                                    WeightFormat::kQ6_K, WeightFormat::kMxfp4};

struct BlockForm {
  int64_t columns, bytes, scale_at;
  bool minimum;
};
BlockForm form_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return {32, 34, 0, false};
    case WeightFormat::kQ4_0:
      return {32, 18, 0, false};
    case WeightFormat::kQ4_1:
      return {32, 20, 0, true};
    case WeightFormat::kQ5_0:
      return {32, 22, 0, false};
    case WeightFormat::kQ4_K:
      return {256, 144, 0, true};
    case WeightFormat::kQ5_K:
      return {256, 176, 0, true};
    case WeightFormat::kQ6_K:
      return {256, 210, 208, false};
    default:
      return {32, 17, 0, false};
  }
}

// Blocks of any codes, with scales that leave weights near 1 / sqrt(in).
Weight random_experts(WeightFormat format, int64_t experts, int64_t out, int64_t in) {
  const BlockForm form = form_of(format);
  const std::vector<int64_t> shape = {experts, out, in / form.columns};
  Tensor bytes = at::randint(0, 256, {experts, out, in / form.columns, form.bytes}, at::kByte);
  if (format == WeightFormat::kMxfp4) {
    bytes.select(-1, 0).copy_(at::randint(119, 125, shape, at::kByte));
  } else {
    const int64_t halves = form.minimum ? 2 : 1;
    const Tensor scales = (at::rand({experts, out, in / form.columns, halves}) * 0.004).to(at::kHalf).view(at::kByte);
    bytes.narrow(-1, form.scale_at, 2 * halves).copy_(scales);
  }
  return experts_weight_of(bytes.view({experts, out, -1}), format);
}

Tensor token_by_token_packed(const Tensor& x, const Routing& r, const PackedExpertWeights& w, const ExpertsOptions& o) {
  const Tensor up = w.up.dequantised(at::kDouble), down = w.down.dequantised(at::kDouble);
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    Tensor sum = at::zeros({x.size(1)}, at::kDouble);
    for (int64_t j = 0; j < r.index.size(1); ++j) {
      const int64_t e = r.index[t][j].item<int64_t>();
      if (e < 0 || e >= up.size(0)) continue;
      const Tensor s = r.weights[t][j].to(at::kDouble), in = x[t].to(at::kDouble);
      Tensor h = up[e].matmul(o.scale_input ? s * in : in);
      if (w.up_bias.defined()) h = h + w.up_bias[e];
      const int64_t half = h.size(0) / 2;
      const Tensor pairs = o.interleaved ? h.view({half, 2}) : h.view({2, half}).t();
      const Tensor gate = pairs.select(1, 0);
      Tensor y = down[e].matmul(gate * gate.sigmoid() * pairs.select(1, 1));
      if (w.down_bias.defined()) y = y + w.down_bias[e];
      sum = sum + (o.scale_input ? y : s * y);
    }
    rows.push_back(sum);
  }
  return rows.empty() ? at::zeros({0, x.size(1)}, at::kDouble) : at::stack(rows);
}

double apart(const Tensor& got, const Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm().clamp_min(1e-30)).item<double>();
}

TEST(PackedExperts, StockMatchesFloat64InEveryFormat) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  for (const WeightFormat format : kPackedFormatsOfExperts) {
    const int64_t block = form_of(format).columns, dim = 2 * block, hidden = block, experts = 5;
    for (const int64_t tokens : {0, 1, 2, 5, 33}) {
      for (const int layout : {0, 1, 2, 3}) {
        const ExpertsOptions o{.interleaved = layout % 2 == 1, .scale_input = layout == 2};
        PackedExpertWeights w{.up = random_experts(format, experts, 2 * hidden, dim),
                              .down = random_experts(format, experts, dim, hidden)};
        if (layout >= 2) w.up_bias = at::randn({experts, 2 * hidden}), w.down_bias = at::randn({experts, dim});
        const Tensor x = at::randn({tokens, dim});
        Routing routing{at::randint(0, experts - 1, {tokens, 2}, at::kLong), at::rand({tokens, 2}) + 0.1};
        if (tokens > 2) routing.index[1][0] = -1;
        if (layout == 3) routing.index.fill_(2);  // all to one
        const Tensor got = stock::packed_experts(x, routing, w, o), expected = token_by_token_packed(x, routing, w, o);
        ASSERT_EQ(got.sizes(), x.sizes());
        if (tokens > 0)
          EXPECT_LE(apart(got, expected), 2e-6) << name_of(format) << ", " << tokens << " tokens " << layout;
      }
    }
  }
}

TEST(PackedExperts, OneProjectionMayBePlain) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  PackedExpertWeights w{.up = random_experts(WeightFormat::kQ4_K, 3, 64, 256),
                        .down = {.data = at::randn({3, 256, 32})}};
  const Tensor x = at::randn({4, 256});
  const Routing routing{at::randint(0, 3, {4, 2}, at::kLong), at::rand({4, 2})};
  EXPECT_LE(apart(stock::packed_experts(x, routing, w, {}), token_by_token_packed(x, routing, w, {})), 2e-6);
  PackedExpertWeights transposed = w;
  transposed.down.data = w.down.data.transpose(1, 2).contiguous();
  // Of a transposed weight a CPU without AVX-512 adds up in another order.
  EXPECT_LE(apart(stock::packed_experts(x, routing, transposed, {.transposed = true}),
                  token_by_token_packed(x, routing, w, {})),
            2e-6);
}

// Scales that are no number, of experts that no token chose.
TEST(PackedExperts, ExpertsWithoutTokensAreNotDecoded) {
  PackedExpertWeights w{.up = random_experts(WeightFormat::kQ8_0, 4, 64, 64),
                        .down = random_experts(WeightFormat::kQ8_0, 4, 64, 32)};
  w.up.data[1].fill_(0xff), w.down.data[3].fill_(0xff);
  const Routing routing{at::ones({5, 2}, at::kLong) * 2, at::ones({5, 2})};
  EXPECT_TRUE(stock::packed_experts(at::randn({5, 64}), routing, w, {}).isfinite().all().item<bool>());
}

// Of more weights than are decoded at once, and biases beside them.
TEST(PackedExperts, AWideExpertIsDecodedPartByPart) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  const int64_t dim = 1024, hidden = 2080;
  PackedExpertWeights w{.up = random_experts(WeightFormat::kQ4_0, 2, 2 * hidden, dim),
                        .up_bias = at::randn({2, 2 * hidden}),
                        .down = random_experts(WeightFormat::kQ4_0, 2, dim, hidden)};
  const Tensor x = at::randn({3, dim});
  const Routing routing{at::randint(0, 2, {3, 1}, at::kLong), at::ones({3, 1})};
  EXPECT_LE(apart(stock::packed_experts(x, routing, w, {}), token_by_token_packed(x, routing, w, {})), 2e-6);
}

TEST(PackedExperts, AGradientGoesThroughFrozenWeights) {
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  const PackedExpertWeights p{.up = random_experts(WeightFormat::kQ5_0, 3, 64, 64),
                              .down = random_experts(WeightFormat::kQ5_0, 3, 64, 32)};
  const ExpertWeights plain{.up = p.up.dequantised(at::kFloat), .down = p.down.dequantised(at::kFloat)};
  const Tensor x = at::randn({6, 64}).requires_grad_(true), same = x.detach().clone().requires_grad_(true);
  const Routing routing{at::randint(0, 3, {6, 2}, at::kLong), at::rand({6, 2})};
  stock::packed_experts(x, routing, p, {}).square().sum().backward();
  stock::experts(same, routing, plain, {}).square().sum().backward();
  EXPECT_LE(apart(x.grad(), same.grad().to(at::kDouble)), 1e-5);
}

TEST(PackedExperts, ALayerHasOneOfTwoSlotsAndUnpacks) {
  Experts layer({.experts = 3, .dim = 64, .hidden = 32, .bias = true}, {.interleaved = true, .transposed = true},
                "Named");
  const auto slots = [&] {
    std::vector<std::string> names;
    layer.each_slot([&](const std::string&, const SlotBase& slot) {
      if (slot.in_use()) names.push_back(cat(slot.layer(), " ", join(slot.needs().weights, "+")));
    });
    return join(names);
  };
  EXPECT_EQ(slots(), "Named ");
  at::manual_seed(static_cast<uint64_t>(test_support::test_seed()));
  Weight up = random_experts(WeightFormat::kQ4_1, 3, 64, 64), down = random_experts(WeightFormat::kMxfp4, 3, 64, 32);
  up.transposed = down.transposed = true;
  layer.each_tensor([](const std::string&, Tensor& tensor) { tensor = at::randn(tensor.sizes()); });
  layer.each_weight([&](const std::string& name, Weight& weight) { weight = name == "down_proj" ? down : up; });
  layer.tensors_changed();
  EXPECT_EQ(slots(), "PackedExperts mxfp4+q4_1");
  const at::NoGradGuard no_grad;
  const Tensor x = at::randn({5, 64});
  const Routing routing{at::randint(0, 3, {5, 2}, at::kLong), at::rand({5, 2})};
  const Tensor packed = layer.forward(x, routing);
  layer.dequantise(at::kFloat);
  layer.tensors_changed();
  EXPECT_EQ(slots(), "Named ");
  EXPECT_LE(apart(layer.forward(x, routing), packed.to(at::kDouble)), 2e-6);
}

TEST(PackedExperts, BytesThatAreNoBlocksAreRefused) {
  const std::string error = message_of([] {
    experts_weight_of(at::zeros({2, 3, 35}, at::kByte), WeightFormat::kQ8_0);
  });
  EXPECT_NE(error.find("q8_0, uint8 [experts, rows, whole blocks]"), std::string::npos) << error;
  EXPECT_NE(error.find("[2, 3, 35]"), std::string::npos) << error;
}

}  // namespace
}  // namespace hotswap
