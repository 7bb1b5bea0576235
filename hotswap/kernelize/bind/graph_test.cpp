// What a bound slot leaves in autograd's graph: what may be done with it, and what is refused with which words.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "hotswap/kernelize/bind/test_bind.h"

namespace hotswap {
namespace {

using test_support::Bound;
using test_support::bundled_layer;
using test_support::difference;
using test_support::expect_has;
using test_support::kTolerance;
using test_support::leaves;
using test_support::message_of;
using test_support::PackageCopy;

TEST(BoundGraph, DoubleBackwardIsRefused) {
  const Bound<RmsNormForward> bound(bundled_layer("norm", "RMSNorm"), stock::rms_norm);
  const Tensors in = leaves({at::randn({2, 8}), at::randn({8})}, true);
  const Tensor y = bound(in[0], in[1], 1e-6, 0., "llama");
  expect_has(message_of([&] { torch::autograd::backward({y.sum()}, {}, true, /*create_graph=*/true); }),
             {"gradient of the gradient through norm:RMSNorm", "unkernelize"});
}

TEST(BoundGraph, AKernelWithoutBackwardSaysSoWhenAGradientIsAskedFor) {
  PackageCopy copy("norm");
  copy.edit_layers([](nlohmann::ordered_json& json) {
    json["layers"]["RMSNorm"]["ops"] = {{"forward", "rms_norm"}};
    json["layers"]["RMSNorm"]["capabilities"]["backward"] = false;
  });
  const PackageLayer& layer = load_package(read_manifest(copy.variant())).layer("RMSNorm");
  const Bound<RmsNormForward> bound(layer, stock::rms_norm);
  const Tensors in = leaves({at::randn({2, 8}), at::randn({8})}, true);
  const Tensor y = bound(in[0], in[1], 1e-6, 0., "llama");
  EXPECT_LT(difference(y, stock::rms_norm(in[0], in[1], 1e-6, 0, "llama")), kTolerance);
  ASSERT_TRUE(y.requires_grad());
  expect_has(message_of([&] { y.sum().backward(); }),
             {"gradient through norm:RMSNorm", "without backward", "TRAINING"});
}

TEST(BoundGraph, GraphsOutliveTheSlotThatMadeThem) {
  Tensor y;
  const Tensors in = leaves({at::randn({2, 8}), at::randn({8})}, true);
  {
    Bound<RmsNormForward> bound(bundled_layer("norm", "RMSNorm"), stock::rms_norm);
    y = bound(in[0], in[1], 1e-6, 0., "llama");
    bound.slot.unbind();
  }
  y.sum().backward();
  EXPECT_TRUE(in[1].grad().defined());
}

// Of an exception that torch throws.
std::string torch_says(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(BoundGraph, AGraphIsWalkedOnceUnlessItIsKept) {
  const Bound<RmsNormForward> bound(bundled_layer("norm", "RMSNorm"), stock::rms_norm);
  const Tensors in = leaves({at::randn({2, 8}), at::randn({8})}, true);
  const Tensor y = bound(in[0], in[1], 1e-6, 0., "llama");
  const Tensor dy = at::randn({2, 8});
  torch::autograd::backward({y}, {dy}, /*retain_graph=*/true);
  const Tensor once = in[1].grad().clone();
  torch::autograd::backward({y}, {dy});
  EXPECT_TRUE(test_support::same_bits(in[1].grad(), once * 2));
  expect_has(torch_says([&] { torch::autograd::backward({y}, {dy}); }), {"backward through the graph a second time"});
}

TEST(BoundGraph, AChangeOfWhatWasSavedIsSeen) {
  const Bound<RmsNormForward> bound(bundled_layer("norm", "RMSNorm"), stock::rms_norm);
  const Tensors in = leaves({at::randn({2, 8}), at::randn({8})}, true);
  const Tensor x = in[0] * 2;
  const Tensor y = bound(x, in[1], 1e-6, 0., "llama");
  x.detach().zero_();
  expect_has(torch_says([&] { y.sum().backward(); }), {"modified by an inplace operation"});
}

TEST(BoundGraph, NamesThatSayNothingAreRefused) {
  const PackageLayer& layer = bundled_layer("norm", "RMSNorm");
  Contract odd = layer.contract();
  odd.roles["backward"] = "(Tensor dy, Tensor x, Tensor weight, Tensor sigma) -> (Tensor dx, Tensor dweight)";
  static std::vector<std::unique_ptr<LayerOps>> kept;  // as packages are
  kept.push_back(
      std::make_unique<LayerOps>("norm:Odd", odd,
                                 std::map<std::string, std::string>{{"forward", layer.op("forward")},
                                                                    {"forward_train", layer.op("forward_train")},
                                                                    {"backward", layer.op("backward")}},
                                 /*trains=*/true));
  expect_has(message_of([&] { const Bound<RmsNormForward> bound(*kept.back(), stock::rms_norm); }),
             {"rms_norm/1's backward", "'sigma'", "bind/regular.h"});
}

TEST(BoundGraph, ASlotOfAnotherTypeIsRefused) {
  class Odd : public Module {
   public:
    Slot<Tensor(const Tensor&)> slot{this, "RMSNorm", "rms_norm/1", [](const Tensor& x) { return x; }};
  } odd;
  const PackageLayer& layer = bundled_layer("norm", "RMSNorm");
  expect_has(message_of([&] { layer.contract().bind(odd.slot, layer); }), {"C++ type of its contract rms_norm/1"});
}

}  // namespace
}  // namespace hotswap
