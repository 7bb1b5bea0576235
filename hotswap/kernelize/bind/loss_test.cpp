// Bound losses where no target counts.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
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

}  // namespace
}  // namespace hotswap
