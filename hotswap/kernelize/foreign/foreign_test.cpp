// Packages of the Hub that were not built for hotswap, through their adapters: packages in the same shapes, made here.
#include "hotswap/kernelize/foreign/foreign.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/base/file.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/kernelize/example/example.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/testing.h"
#include "hotswap/layers/deformable.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using binding::BoundLayer;
using test_support::difference;
using test_support::expect_has;
using test_support::ForeignCopy;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::row_of;
using test_support::TinyModel;

constexpr double kTolerance = 3e-6;  // float32 on both sides

Tensor some(at::IntArrayRef shape) { return at::randn(shape, at::kFloat); }

TEST(Foreign, ActivationsThatFillAGivenTensor) {
  const ForeignCopy foreign("activation", HOTSWAP_TEST_FOREIGN_STABLE);
  const Package& package = foreign.load();
  EXPECT_FALSE(fs::exists(package.manifest().folder / "layers.json"));
  const std::map<std::string, std::string> stock = {
      {"Silu", "silu"},        {"Gelu", "gelu"},          {"GeluTanh", "gelu_pytorch_tanh"},
      {"NewGELU", "gelu_new"}, {"FastGELU", "gelu_fast"}, {"QuickGELU", "quick_gelu"}};
  for (const auto& [name, function] : stock) {
    const PackageLayer& layer = package.layer(name);
    EXPECT_FALSE(layer.capabilities().backward);
    EXPECT_TRUE(layer.runs_on("cpu"));
    EXPECT_FALSE(layer.runs_on("cuda"));
    const auto want = activation_kind(function, "the test").stock;
    const BoundLayer<ActivationForward> got(layer, [](const Tensor& x) { return x; });
    const std::string op = layer.op("forward").substr(layer.op("forward").rfind(':') + 1);
    const int64_t before = package.calls(op);
    for (const Tensor& x : {some({3, 7}), some({7, 3}).t(), some({0, 5}), some({2, 3, 4})}) {
      const Tensor y = got.slot(x);
      EXPECT_EQ(y.sizes(), x.sizes());
      if (x.numel() > 0) {
        EXPECT_LT(difference(y, want(x)), kTolerance) << name;
      }
    }
    EXPECT_EQ(package.calls(op), before + 4) << name;
    EXPECT_NE(message_of([&] {
                const Tensor x = some({3}).set_requires_grad(true);
                torch::autograd::backward({got.slot(x)}, {at::ones({3})});
              }),
              "no error")
        << "no gradient is lost in silence";
  }
  EXPECT_FALSE(package.layer("GeluTanhAndMul").runs_on("cpu")) << "defined, but without a kernel";
  const BoundLayer<ActivationForward> gated(package.layer("SiluAndMul"), [](const Tensor& x) { return x; });
  const Tensor gate = some({5, 8}), up = some({5, 8});
  EXPECT_LT(difference(gated.slot(at::cat({gate, up}, -1)), activation_kind("silu", "the test").stock(gate) * up),
            kTolerance);
  EXPECT_NE(message_of([&] { gated.slot(some({3, 5})); }), "no error");
}

TEST(Foreign, RotaryWithItsGradient) {
  const ForeignCopy foreign("rotary", HOTSWAP_TEST_FOREIGN_NATIVE);
  const Package& package = foreign.load();
  const BoundLayer<RotaryForward> got(package.layer("apply_rotary_transformers"), stock::rotary);
  for (const int64_t dim : {8, 6}) {  // all of a head, and a part of it
    const Tensor angle = some({1, 5, dim / 2}), angles = at::cat({angle, angle}, -1);
    const Tensor cos = angles.cos(), sin = angles.sin(), dq = some({2, 3, 5, 8}), dk = some({2, 1, 5, 8});
    const auto run = [&](const auto& rotary) {
      const Tensor q = at::arange(240, at::kFloat).reshape({2, 3, 5, 8}).div(100).set_requires_grad(true);
      const Tensor k = at::arange(80, at::kFloat).reshape({2, 1, 5, 8}).div(50).set_requires_grad(true);
      const auto [a, b] = rotary(q, k, cos, sin, dim, false);
      torch::autograd::backward({a, b}, {dq, dk});
      return std::vector<Tensor>{a.detach(), b.detach(), q.grad(), k.grad()};
    };
    const auto have = run(got.slot), want = run(stock::rotary);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(difference(have[i], want[i]), kTolerance) << dim << " " << i;
  }
  EXPECT_EQ(package.calls("rotary"), 2);
  EXPECT_EQ(package.calls("rotary_bwd"), 2);
  const Tensor q = some({1, 1, 2, 4}), table = some({1, 2, 4});
  expect_has(message_of([&] { got.slot(q, q, table, table, int64_t{4}, true); }), {"interleaved", "hotswap/rotary"});
}

TEST(Foreign, RmsNormInferenceOnly) {
  const ForeignCopy foreign("rmsnorm", HOTSWAP_TEST_FOREIGN_NATIVE);
  const Package& package = foreign.load();
  const BoundLayer<RmsNormForward> got(package.layer("RMSNorm"), stock::rms_norm);
  const Tensor x = some({4, 6}), weight = some({6});
  for (const double offset : {0.0, 1.0}) {
    EXPECT_LT(difference(got.slot(x, weight, 1e-5, offset, "gemma"), stock::rms_norm(x, weight, 1e-5, offset, "gemma")),
              kTolerance);
  }
  EXPECT_EQ(package.calls("rms_norm"), 2);

  // Through kernelize: the report says what runs; in training the layer stays stock.
  TinyModel model;
  KernelOptions options;
  options.config = {.kernel_mapping = {{"RMSNorm", KernelRef(foreign.root().string() + ":RMSNorm")}},
                    .inherit_mapping = false};
  options.config.use_local_kernel = true;
  const auto bound = [&](Mode mode) {
    return row_of(kernelize(model, mode, options), "RMSNorm").package.value_or("stock");
  };
  EXPECT_EQ(bound(Mode::INFERENCE), "rmsnorm");
  EXPECT_EQ(bound(Mode::TRAINING), "stock");
}

// The library of the test takes the nearest pixel, which on the centres of pixels is all that counts, and makes up two
// of the gradients: that it is given what it reads, in any type and layout, and that what it gives comes back in ours.
TEST(Foreign, DeformableAttentionInFloat32) {
  const ForeignCopy foreign("deformable-detr", HOTSWAP_TEST_FOREIGN_NATIVE);
  const Package& package = foreign.load();
  const PackageLayer& layer = package.layer("MultiScaleDeformableAttention");
  EXPECT_TRUE(layer.capabilities().backward);
  EXPECT_FALSE(layer.capabilities().deterministic);
  const BoundLayer<DeformableForward> got(layer, stock::deformable_attention);
  const Tensor shapes = at::tensor({2, 3}, at::kInt).view({1, 2}), starts = at::tensor({0}, at::kInt);
  const Tensor pixels = at::stack({at::randint(3, {3, 5, 2, 1, 4}), at::randint(2, {3, 5, 2, 1, 4})}, -1);
  const Tensor places = (pixels + 0.5) / at::tensor({3.f, 2.f});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor value = some({3, 6, 4, 2}).transpose(2, 3).to(dtype).set_requires_grad(true);
    const Tensor locations = places.clone().set_requires_grad(true);
    const Tensor weights = some({3, 5, 2, 1, 4}).set_requires_grad(true), dy = some({3, 5, 8}).to(dtype);
    const Tensor y = got.slot(value, shapes, starts, locations, weights);
    torch::autograd::backward({y}, {dy});
    const Tensor own = weights.detach().clone().set_requires_grad(true);
    const Tensor want = stock::deformable_attention(value.detach().to(at::kFloat), shapes, starts, places, own);
    torch::autograd::backward({want}, {dy.to(at::kFloat)});
    const double rounded = dtype == at::kFloat ? kTolerance : 1.0 / 256;
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(difference(y, want), rounded);
    EXPECT_EQ(value.grad().scalar_type(), dtype);
    EXPECT_LT(difference(value.grad(), value.detach() * 2), rounded);
    EXPECT_LT(difference(locations.grad(), places * 3), kTolerance);
    EXPECT_LT(difference(weights.grad(), own.grad()), kTolerance);
  }
  EXPECT_EQ(package.calls("deformable_attention"), 2);
  EXPECT_EQ(package.calls("deformable_attention_bwd"), 2);
  const Tensor none = got.slot(some({0, 6, 2, 4}), shapes, starts, some({0, 5, 2, 1, 4, 2}), some({0, 5, 2, 1, 4}));
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 5, 8}));
}

TEST(Foreign, RefusedWithTheReason) {
  const auto why = [](const ForeignCopy& foreign) {
    std::string text = message_of([&] { foreign.load(); });
    EXPECT_EQ(dlopen(foreign.library().c_str(), RTLD_NOLOAD | RTLD_LAZY), nullptr) << "nothing of it was run";
    return text;
  };
  expect_has(why(ForeignCopy("layer-norm", HOTSWAP_TEST_FOREIGN_STABLE)),
             {"fuses dropout and a residual", "rmsnorm, deformable-detr, flash-attn2"});
  expect_has(why(ForeignCopy("unheard-of", HOTSWAP_TEST_FOREIGN_STABLE)),
             {"'unheard-of'", "activation, rotary, rmsnorm, deformable-detr"});
  const ForeignCopy python("liger-kernels", HOTSWAP_TEST_FOREIGN_STABLE);
  fs::remove(python.library());
  write_digests(python.variant());
  expect_has(message_of([&] { python.load(); }), {"Python only", "stands in", "hotswap/norm (LigerRMSNorm"});

  PackageCopy ours("norm");
  const auto reading = [&] { return message_of([&] { read_package(ours.variant(), bundled_packages()); }); };
  EXPECT_EQ(reading(), "no error");
  fs::remove(ours.variant() / "layers.json");
  expect_has(reading(),
             {"layers.json", "'norm', whose ops are not known here", "activation, rotary, rmsnorm, deformable-detr"});
  fs::remove(ours.library());
  expect_has(reading(), {"layers.json", "Python only"});

  const ForeignCopy changed("activation", HOTSWAP_TEST_FOREIGN_STABLE);
  write_file(changed.variant() / "__init__.py", "import os\n");
  expect_has(why(changed), {"File hash mismatch for __init__.py"});

  // The name is known and the ops are others: listed, and nothing is bound.
  const std::string text = message_of([] { ForeignCopy("activation", HOTSWAP_TEST_FOREIGN_NATIVE).load(); });
  expect_has(text, {"::silu is not registered", "::gelu_tanh_and_mul is not registered"});
}

TEST(Foreign, EveryAdapterServesItsContracts) {
  for (const ForeignPackage& package : foreign_packages()) {
    EXPECT_EQ(package.layers.empty(), *package.missing != '\0') << package.name;
    for (const auto& [layer, entry] : package.layers) {
      const Contract* contract = find_contract(entry.contract);
      ASSERT_NE(contract, nullptr) << package.name << ":" << layer;
      for (const auto& [role, op] : entry.ops) EXPECT_TRUE(contract->roles.contains(role)) << role;
    }
  }
}

}  // namespace
}  // namespace hotswap
