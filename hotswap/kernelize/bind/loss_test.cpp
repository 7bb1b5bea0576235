// Bound losses where no target counts, and where the weight is frozen.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "hotswap/kernelize/bind/test_bind.h"

namespace hotswap {
namespace {

using test_support::Bound;
using test_support::bundled_layer;
using test_support::leaves;

// A sum over no target, divided by their number: dloss is 1 / 0, and the gradients are 0, as torch's.
TEST(Bind, LossesWithoutTargetsHaveNoGradient) {
  const Tensor none = at::full({6}, -100, at::kLong), class_weight = at::randn({13}).abs();
  const Bound<LinearCrossEntropyForward> linear(bundled_layer("loss", "LinearCrossEntropy"),
                                                stock::linear_cross_entropy);
  const Bound<CrossEntropyForward> plain(bundled_layer("loss", "CrossEntropy"), stock::cross_entropy);
  for (const std::string reduction : {"mean", "sum", "none"}) {
    for (const bool more : {false, true}) {
      CrossEntropyOptions options{.reduction = reduction};
      if (more) {
        options.label_smoothing = 0.1;
        options.z_loss = 1e-2;
        options.class_weight = class_weight;
      }
      for (const float factor : {1.f, INFINITY, NAN}) {
        const Tensors in = leaves({at::randn({6, 8}), at::randn({13, 8}), at::randn({13}), at::randn({6, 13})}, true);
        for (const Tensor& loss :
             {linear(in[0], in[1], std::optional(in[2]), none, options), plain(in[3], none, options)}) {
          EXPECT_EQ(loss.isnan().all().item<bool>(), reduction == "mean");
          loss.backward(at::full_like(loss, factor));
        }
        for (const Tensor& t : in) EXPECT_TRUE(at::equal(t.grad(), at::zeros_like(t))) << reduction << factor;
      }
    }
  }
}

// The loss and the gradient of hidden by a frozen weight, chunk by chunk: as torch's, in float64's digits; nothing is
// made for the weight.
TEST(Bind, ALossByAFrozenWeightMakesNoneForIt) {
  const LayerOps& layer = bundled_layer("loss", "LinearCrossEntropy");
  const Bound<LinearCrossEntropyForward> linear(layer, stock::linear_cross_entropy);
  const Tensor target = at::randint(0, 13, {50}, at::kLong);
  target.narrow(0, 10, 7).fill_(-100);
  for (const std::string reduction : {"mean", "sum"}) {
    for (const int64_t chunk_bytes : {int64_t{0}, int64_t{13 * 4 * 16}}) {
      for (const bool more : {false, true}) {
        CrossEntropyOptions options{.reduction = reduction, .chunk_bytes = chunk_bytes};
        if (more) {
          options.label_smoothing = 0.1;
          options.softcap = 5;
          options.z_loss = 1e-2;
          options.token_scaling = true;
        }
        const Tensor hidden = at::randn({50, 8}).set_requires_grad(true), weight = at::randn({13, 8});
        const int64_t before = op_calls("loss", "cross_entropy_fwd_bwd");
        const Tensor loss = linear(hidden, weight, std::nullopt, target, options);
        EXPECT_EQ(op_calls("loss", "cross_entropy_fwd_bwd") - before, chunk_bytes == 0 ? 1 : 4);
        loss.backward(at::full({}, 3.f));
        const Tensor wide = hidden.detach().to(at::kDouble).set_requires_grad(true);
        const Tensor expected =
            stock::linear_cross_entropy(wide, weight.to(at::kDouble), std::nullopt, target, options);
        expected.backward(at::full({}, 3.0, at::kDouble));
        EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6 * std::abs(expected.item<double>()));
        EXPECT_TRUE(at::allclose(hidden.grad().to(at::kDouble), wide.grad(), 1e-4, 1e-6)) << reduction << more;
      }
    }
  }
}

}  // namespace
}  // namespace hotswap
