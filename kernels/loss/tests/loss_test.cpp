// Cross-entropy against float64 ATen, and what both losses refuse.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>

#include "kernels/loss/tests/loss_cases.h"

namespace {

using namespace kernels::testing;
using kernels::on_cuda;
using kernels::package;

// Sizes of the terms of each dlogits: a sure row's are a difference of nearly equal numbers, and e^(u - lse) is known
// as well as lse is.
Tensor gradient_terms(const Tensor& logits, const Tensor& target, const Tensor& dloss, const Options& o) {
  const Tensor z = logits.to(at::kDouble), u = o.softcap > 0 ? o.softcap * (z / o.softcap).tanh() : z;
  const Tensor lse = at::logsumexp(u, -1, true), row = at::arange(z.size(0), at::kLong).to(device());
  const Tensor valid = (target != kIgnore).to(at::kDouble).unsqueeze(1), word = target.clamp_min(0);
  const Tensor w = o.class_weight ? class_weights(z.size(1)).to(at::kDouble) : at::ones_like(z[0]);
  const Tensor all = (1 - o.label_smoothing) * w.index({word}).unsqueeze(1) + o.label_smoothing * w.mean();
  const Tensor p = (u - lse).exp();
  Tensor terms = p * (2 * o.z_loss * lse + all).abs() * lse.abs().clamp_min(1) + w * (o.label_smoothing / z.size(1));
  terms = terms.index_put({row, word}, w.index({word}), /*accumulate=*/true) * valid;
  if (o.token_scaling) terms = terms * p.gather(1, word.unsqueeze(1));
  const Tensor g = dloss.to(at::kDouble).abs();
  const std::string reduction = o.reduction;
  return terms * (reduction == "none" ? g.unsqueeze(1) : reduction == "sum" ? g : g / valid.sum());
}

Tensors cross_entropy(const char* op, const Tensor& logits, const Tensor& target, const Options& o) {
  return package().call(op, logits, target, kIgnore, o.label_smoothing, o.softcap, o.z_loss, o.reduction,
                        class_weight(o, logits.size(1)), o.token_scaling);
}
Tensor cross_entropy_bwd(const Tensor& dloss, const Tensor& logits, const Tensor& target, const Tensor& lse,
                         const Options& o) {
  return package().call("cross_entropy_bwd", dloss, logits, target, lse, kIgnore, o.label_smoothing, o.softcap,
                        o.z_loss, o.reduction, class_weight(o, logits.size(1)), o.token_scaling)[0];
}

TEST(CrossEntropy, ForwardAndBackwardMatchFloat64) {
  const std::vector<std::vector<int64_t>> shapes = {{1, 1}, {1, 2}, {3, 7}, {5, 128}, {7, 577}, {6, 4099}, {2, 20001}};
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : shapes) {
      const Tensor logits = random_tensor(shape, dtype, 3.0), target = random_target(shape[0], shape[1]);
      for (const Options& o : kOptions) {
        const Tensor dloss = random_dloss(o, shape[0]);
        const auto want =
            reference([&](const Tensors& t) { return Tensors{formula(t[0], target, o)}; }, {logits}, {dloss});
        const Tensor terms = gradient_terms(logits, target, dloss, o);
        for (const auto& [layout, lay_out] : layouts()) {
          const std::string what = describe(o, dtype, layout) + " vocab " + std::to_string(shape[1]);
          const Tensor z = lay_out(logits);
          const auto forward = cross_entropy("cross_entropy_fwd", z, target, o);
          EXPECT_EQ(forward[0].scalar_type(), at::kFloat);
          const Tensor dz = cross_entropy_bwd(dloss, z, target, forward[1], o);
          EXPECT_EQ(dz.scalar_type(), dtype);
          // A sure row's loss is the logarithm of 1 + little, in float32: its error is relative to 1, not to itself.
          expect_close(forward[0] + 1, want[0] + 1, 2e-6, "loss " + what);
          expect_close(dz, want[1], tolerance(dtype), "dlogits " + what, terms);
          expect_equal(cross_entropy("cross_entropy", z, target, o)[0], forward[0], "inference " + what);
        }
      }
    }
  }
}

TEST(CrossEntropy, AllRowsIgnored) {
  const Tensor logits = random_tensor({4, 9}, at::kFloat), target = zeros({4}, at::kLong) + kIgnore;
  const auto mean = cross_entropy("cross_entropy_fwd", logits, target, {});
  EXPECT_TRUE(mean[0].isnan().item<bool>());  // as torch
  const Tensor one = zeros({}, at::kFloat) + 1;
  expect_equal(cross_entropy_bwd(one, logits, target, mean[1], {}), at::zeros_like(logits), "dlogits");
  EXPECT_EQ(cross_entropy("cross_entropy", logits, target, {.reduction = "sum"})[0].item<float>(), 0.f);
  EXPECT_EQ(cross_entropy("cross_entropy", logits, target, {.reduction = "none"})[0].abs().sum().item<float>(), 0.f);
}

TEST(CrossEntropy, NoRows) {
  const Tensor logits = zeros({0, 9}, at::kFloat), target = zeros({0}, at::kLong);
  EXPECT_TRUE(cross_entropy("cross_entropy", logits, target, {})[0].isnan().item<bool>());
  EXPECT_EQ(cross_entropy("cross_entropy", logits, target, {.reduction = "none"})[0].numel(), 0);
}

TEST(CrossEntropy, MaskedLogitsAndHugeOnes) {
  Tensor logits = random_tensor({3, 3000}, at::kFloat, 10.0);
  logits.narrow(1, 0, 2500).fill_(-INFINITY);  // a whole first block of nothing
  logits[1][2999] = 3e4;
  const Tensor target = zeros({3}, at::kLong) + 2700;
  const auto want = reference([&](const Tensors& t) { return Tensors{formula(t[0], target, {.reduction = "sum"})}; },
                              {logits}, {zeros({}, at::kFloat) + 1});
  const auto got = cross_entropy("cross_entropy_fwd", logits, target, {.reduction = "sum"});
  expect_close(got[0] + 1, want[0] + 1, 1e-6, "loss");
  const Tensor dz = cross_entropy_bwd(zeros({}, at::kFloat) + 1, logits, target, got[1], {.reduction = "sum"});
  expect_close(dz, want[1], 2e-6, "dlogits");
  logits[0][2600] = NAN;
  EXPECT_TRUE(cross_entropy("cross_entropy", logits, target, {})[0].isnan().item<bool>());
}

// What all logits of a row have in common changes nothing, however little of an lse of that size one float holds.
TEST(CrossEntropy, CommonOffsetCostsNoBits) {
  const std::vector<Options> all = {{}, {.label_smoothing = 0.1}, {.label_smoothing = 0.1, .class_weight = true}};
  for (const Options& o : all) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const double offset : {-3e4, 1e3, 3e4, 1e12, 1e30}) {
        if (dtype == at::kHalf && std::abs(offset) > 6e4) continue;
        for (const int64_t vocab : {37, 5003}) {
          const Tensor logits = (random_tensor({6, vocab}, at::kFloat) + offset).to(dtype);
          const Tensor target = random_target(6, vocab), one = zeros({}, at::kFloat) + 1;
          const auto want =
              reference([&](const Tensors& t) { return Tensors{formula(t[0], target, o)}; }, {logits}, {one});
          const auto got = cross_entropy("cross_entropy_fwd", logits, target, o);
          const std::string what = describe(o, dtype, "offset ") + std::to_string(offset);
          expect_close(got[0], want[0], 1e-6, "loss " + what);
          const Tensor dz = cross_entropy_bwd(one, logits, target, got[1], o);
          expect_close(dz, want[1], tolerance(dtype), "dlogits " + what);
          Tensor place = logits.clone();
          cross_entropy("cross_entropy_fwd_", place, target, o);
          expect_close(place, want[1], tolerance(dtype), "dlogits in place " + what);
        }
      }
    }
  }
}

TEST(CrossEntropy, IgnoreIndexMayBeAToken) {
  const Tensor logits = random_tensor({4, 9}, at::kFloat), target = zeros({4}, at::kLong);
  target[1] = 3;
  const auto got = package().call("cross_entropy", logits, target, 3, 0.0, 0.0, 0.0, "mean")[0];
  const Tensor want = at::cross_entropy_loss(logits.to(at::kDouble), target, {}, at::Reduction::Mean, 3);
  expect_close(got, want, 1e-6, "loss");
}

TEST(CrossEntropy, BothAtOnceMatchFloat64) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t vocab : {1, 7, 577, 20001, 70000}) {  // in shared memory, in L2
      for (const Options& o : kOptions) {
        if (vocab == 70000 && &o != &kOptions[0]) continue;
        const Tensor logits = random_tensor({9, vocab}, dtype, 3.0), target = random_target(9, vocab);
        const Tensor one = std::string(o.reduction) == "none" ? zeros({9}, at::kFloat) + 1 : zeros({}, at::kFloat) + 1;
        const auto want =
            reference([&](const Tensors& t) { return Tensors{formula(t[0], target, o)}; }, {logits}, {one});
        const Tensor terms = gradient_terms(logits, target, one, o);
        for (const auto& [layout, lay_out] : layouts()) {
          const std::string what = describe(o, dtype, layout) + " at once, vocab " + std::to_string(vocab);
          const Tensor z = lay_out(logits);
          const auto got = cross_entropy("cross_entropy_fwd_bwd", z, target, o);
          expect_close(got[0] + 1, want[0] + 1, 2e-6, "loss " + what);
          expect_close(got[2], want[1], tolerance(dtype), "dlogits " + what, terms);
          expect_equal(got[2], cross_entropy_bwd(one, z, target, got[1], o), "as in two passes " + what);
          expect_equal(z, logits, "logits " + what);
        }
      }
    }
  }
  const auto none = cross_entropy("cross_entropy_fwd_bwd", zeros({0, 9}, at::kFloat), zeros({0}, at::kLong), {});
  EXPECT_EQ(none[2].sizes(), at::IntArrayRef({0, 9}));
}

TEST(CrossEntropy, InPlaceGivesTheSameLossAndItsGradient) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t vocab : {7, 128, 577, 20001, 70000}) {  // in shared memory, in L2
      for (const Options& o : kOptions) {
        const Tensor logits = random_tensor({9, vocab}, dtype, 3.0), target = random_target(9, vocab);
        const std::string what = describe(o, dtype, "in place, vocab ") + std::to_string(vocab);
        const Tensor one = std::string(o.reduction) == "none" ? zeros({9}, at::kFloat) + 1 : zeros({}, at::kFloat) + 1;
        for (const auto& [layout, lay_out] : layouts()) {
          const Tensor z = lay_out(logits.clone());
          if (z.stride(-1) != 1) continue;
          const auto want = cross_entropy("cross_entropy_fwd", z, target, o);
          const Tensor before = z.clone();
          const auto got = cross_entropy("cross_entropy_fwd_", z, target, o);
          expect_close(got[0] + 1, want[0] + 1, 2e-6, "loss " + what);  // a GPU sums in another order here
          expect_close(got[1], want[1], 2e-6, "lse " + what);
          const Tensor gradient = cross_entropy_bwd(one, before, target, got[1], o);
          expect_equal(z, gradient, std::string("gradient ") + layout + " " + what);
        }
      }
    }
  }
  const Tensor logits = random_tensor({9, 8}, at::kFloat), target = random_target(9, 8);
  expect_refusal([&] { cross_entropy("cross_entropy_fwd_", transposed(logits), target, {}); }, {"in place"});
}

// A GPU is lost to the process that asserted: a process of its own makes the call.
TEST(CrossEntropyDeathTest, TargetsOutsideOfTheVocabulary) {
  const auto call = [] {
    Tensor target = zeros({3}, at::kLong);
    target[2] = 8;
    cross_entropy("cross_entropy_fwd", random_tensor({3, 8}, at::kFloat), target, {})[0].item<float>();
  };
  if (!on_cuda()) return expect_refusal(call, {"targets from 0 to 7", "got 8 in row 2"});
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_a_process = [&] {
    try {
      call();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  // 710 is cudaErrorAssert, as the runtime says it of a captured call.
  EXPECT_EXIT(in_a_process(), ::testing::ExitedWithCode(3), "device-side assert|CUDA error 710");
}

TEST(CrossEntropy, BackwardIsTheGradientOfForward) {
  for (const Options& o : kOptions) {
    if (o.token_scaling) continue;  // a constant to the gradient, not to the loss
    const Tensor logits = random_tensor({4, 6}, at::kFloat), target = random_target(4, 6), dloss = random_dloss(o, 4);
    const auto loss = [&](const Tensors& t) {
      return (cross_entropy("cross_entropy", t[0], target, o)[0].to(at::kDouble) * dloss).sum().item<double>();
    };
    const auto forward = cross_entropy("cross_entropy_fwd", logits, target, o);
    expect_finite_difference(loss, {logits}, {cross_entropy_bwd(dloss, logits, target, forward[1], o)},
                             describe(o, at::kFloat, ""));
  }
}

TEST(CrossEntropy, SameBitsWithAnyNumberOfThreads) {
  const Tensor logits = random_tensor({101, 5003}, at::kFloat), target = random_target(101, 5003);
  const Tensor one = zeros({}, at::kFloat) + 1;
  expect_same_with_any_threads(
      [&] {
        Tensors out = cross_entropy("cross_entropy_fwd", logits, target, {});
        out.push_back(cross_entropy_bwd(one, logits, target, out[1], {}));
        return out;
      },
      "cross_entropy");
}

TEST(CrossEntropy, StreamingStoresWriteTheSame) {  // gradients above the threshold, whole vectors a row and not
  for (const int64_t vocab : {8192, 8191}) {
    const Tensor logits = random_tensor({600, vocab}, at::kFloat), target = random_target(600, vocab);
    const Tensor one = zeros({}, at::kFloat) + 1;
    const Options sum{.reduction = "sum"};
    const auto forward = cross_entropy("cross_entropy_fwd", logits, target, sum);
    const Tensor whole = cross_entropy_bwd(one, logits, target, forward[1], sum);
    const auto part = [](const Tensor& t) { return t.narrow(0, 0, 9); };
    expect_equal(part(whole), cross_entropy_bwd(one, part(logits), part(target), part(forward[1]), sum), "dlogits");
  }
}

TEST(Loss, RefusesWhatItCannotDo) {
  const Tensor logits = random_tensor({3, 8}, at::kFloat), target = zeros({3}, at::kLong);
  const auto call = [&](const Tensor& z, const Tensor& t, double smoothing = 0, double softcap = 0,
                        const char* reduction = "mean") {
    return [=] { package().call("cross_entropy", z, t, kIgnore, smoothing, softcap, 0.0, reduction); };
  };
  if (!on_cuda()) {  // a GPU would have to be waited for: its answer is nan, below
    Tensor bad = target.clone();
    bad[2] = 8;
    expect_refusal(call(logits, bad), {"targets from 0 to 7", "got 8 in row 2"});
    bad[2] = -1;
    expect_refusal(call(logits, bad), {"ignore_index -100", "got -1 in row 2"});
  }
  expect_refusal(call(logits, target.to(at::kInt)), {"int64"});
  expect_refusal(call(logits, target.narrow(0, 0, 2)), {"target [3]", "got [2]"});
  expect_refusal(call(logits, target, 1.5), {"label_smoothing from 0 to 1", "1.5"});
  expect_refusal(call(logits, target, 0, -1), {"softcap >= 0", "-1"});
  expect_refusal(call(logits, target, 0, 0, "avg"), {"mean, sum or none", "avg"});
  expect_refusal(call(logits.to(at::kDouble), target), {"float32, bfloat16 or float16"});
  const auto weighted = [&](const Tensor& w) {
    return [=] { package().call("cross_entropy", logits, target, kIgnore, 0.0, 0.0, 0.0, "mean", w); };
  };
  expect_refusal(weighted(class_weights(7)), {"class_weight [8]", "got [7]"});
  expect_refusal(weighted(class_weights(8).to(at::kDouble)), {"class_weight in float32", "got float64; cast it"});
  const auto linear = [&](const Tensor& h, const Tensor& w, const c10::IValue& b, const Tensor& t) {
    return [=] { package().call("linear_cross_entropy", h, w, b, t, kIgnore, 0.0, 0.0, 0.0, "mean"); };
  };
  const auto in = random_tensors({{3, 4}, {8, 4}, {8, 5}, {7}}, at::kFloat);
  expect_refusal(linear(in[0], in[2], {}, target), {"expected weight [vocab, 4]", "[8, 5]"});
  expect_refusal(linear(in[0], in[1], in[3], target), {"bias [8]", "got [7]"});
  expect_refusal(linear(in[0], in[1].to(at::kHalf), {}, target), {"weight in hidden's dtype"});
  if (!on_cuda()) expect_refusal(linear(in[0], in[1], {}, target + 8), {"got 8 in row 0"});
}

TEST(Loss, CallsAreCounted) {
  const Tensor logits = random_tensor({3, 8}, at::kFloat), target = zeros({3}, at::kLong);
  const int64_t before = package().call_count("cross_entropy_fwd"), other = package().call_count("cross_entropy");
  const auto forward = cross_entropy("cross_entropy_fwd", logits, target, {});
  EXPECT_EQ(package().call_count("cross_entropy_fwd"), before + 1);
  EXPECT_EQ(package().call_count("cross_entropy"), other);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
