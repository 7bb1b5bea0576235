// Softmax, sparsemax and divergences against float64 ATen, and what they refuse.
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};
const std::vector<std::vector<int64_t>> kShapes = {{1, 1}, {3, 7}, {2, 3, 64}, {5, 577}, {2, 20001}, {0, 9}, {70, 33}};

Tensor sparsemax(const Tensor& x) {  // by sorting; its gradient is autograd's
  const Tensor sorted = std::get<0>(x.sort(-1, /*descending=*/true)), sums = sorted.cumsum(-1);
  const Tensor k = at::arange(1, x.size(-1) + 1, x.options());
  const Tensor number = ((1 + k * sorted) > sums).sum(-1, /*keepdim=*/true);
  return (x - (sums.gather(-1, number - 1) - 1) / number).clamp_min(0);
}

std::string describe(const std::string& op, at::ScalarType dtype, const std::vector<int64_t>& shape,
                     const char* layout) {
  std::string text = op + " " + c10::toString(dtype) + " " + layout;
  for (const int64_t size : shape) text += " " + std::to_string(size);
  return text;
}

// By the op's own set of numbers above 0: where one lies on the threshold, rounding decides, and both are right.
Tensor sparsemax_gradient(const Tensor& y, const Tensor& dy) {
  const Tensor above = (y > 0).to(at::kDouble), g = dy.to(at::kDouble) * above;
  return above * (g - g.sum(-1, true) / above.sum(-1, true));
}

void expect_softmax(const std::string& op, const Formula& formula, double scale) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) {
      const Tensor x = random_tensor(shape, dtype, scale), dy = random_tensor(shape, dtype);
      const auto want = reference(formula, {x}, {dy});
      for (const auto& [layout, lay_out] : layouts()) {
        const std::string what = describe(op, dtype, shape, layout);
        const Tensor y = package().call(op, lay_out(x))[0];
        EXPECT_EQ(y.scalar_type(), dtype);
        expect_close(y, want[0], 2 * tolerance(dtype), what);
        // Backward takes the rounded y: two roundings, of terms that cancel where dy is alike.
        const Tensor dx = package().call(op + "_bwd", lay_out(dy), lay_out(y))[0];
        const Tensor gradient = op == "softmax" ? want[1] : sparsemax_gradient(y, dy);
        expect_close(dx, gradient, 4 * tolerance(dtype), what + " dx", want[0] * dy.to(at::kDouble));
      }
    }
  }
}

TEST(Softmax, ForwardAndBackwardMatchFloat64) {
  expect_softmax(
      "softmax", [](const Tensors& t) { return Tensors{at::softmax(t[0], -1)}; }, 3.0);
}
TEST(Sparsemax, ForwardAndBackwardMatchFloat64) {
  for (const double scale : {0.05, 1.0, 3.0})  // a set of many, of some, of few
    expect_softmax(
        "sparsemax", [](const Tensors& t) { return Tensors{sparsemax(t[0])}; }, scale);
}

TEST(Softmax, MaskedAndHugeNumbers) {
  Tensor x = random_tensor({4, 3000}, at::kFloat, 10.0);
  x.narrow(1, 0, 2500).fill_(-INFINITY);
  x[1][2999] = 3e4;
  expect_close(package().call("softmax", x)[0], at::softmax(x.to(at::kDouble), -1), 2e-6, "softmax");
  expect_close(package().call("sparsemax", x)[0], sparsemax(x.to(at::kDouble).clamp_min(-1e6)), 2e-6, "sparsemax");
  x[2].fill_(-INFINITY);
  x[3][2600] = NAN;
  for (const char* op : {"softmax", "sparsemax"}) {
    const Tensor y = package().call(op, x)[0];
    EXPECT_TRUE(y.narrow(0, 2, 2).isnan().any(1).all().item<bool>()) << op;
    EXPECT_FALSE(y.narrow(0, 0, 2).isnan().any().item<bool>()) << op;
  }
}

TEST(Sparsemax, EqualNumbersShareTheWhole) {
  const Tensor y = package().call("sparsemax", at::zeros({2, 8}, at::kFloat).to(device()) + 5)[0];
  expect_equal(y, at::zeros({2, 8}, at::kFloat).to(device()) + 0.125, "sparsemax");
}

// ---- divergences

Tensor zero_times(const Tensor& p, const Tensor& v) { return at::where(p == 0, at::zeros_like(v), p * v); }
Tensor jsd(const Tensor& x, const Tensor& target, double beta) {
  const Tensor q = x.exp(), p = target.exp();
  if (beta == 0) return zero_times(p, target - x);
  if (beta == 1) return zero_times(q, x - target);
  const Tensor m = (beta * p + (1 - beta) * q).log();
  return beta * zero_times(p, target - m) + (1 - beta) * zero_times(q, x - m);
}

struct Case {
  std::string name, op;
  bool log_x, log_target;
  std::vector<c10::IValue> options;  // after labels and ignore_index
  std::function<Tensor(const Tensor& x, const Tensor& target)> term;
};
const std::vector<Case>& divergences() {
  static const std::vector<Case> all = [] {
    std::vector<Case> cases = {
        {"kl", "kl_div", true, false, {false, 1e-10}, [](auto& x, auto& p) { return zero_times(p, p.log() - x); }},
        {"kl of logs", "kl_div", true, true, {true, 0.0}, [](auto& x, auto& t) { return jsd(x, t, 0); }},
        {"tvd", "tvd", false, false, {}, [](auto& x, auto& t) { return (x - t).abs() / 2; }},
    };
    for (const double beta : {0.0, 0.01, 0.5, 0.9, 1.0})
      cases.push_back({"jsd " + std::to_string(beta), "jsd", true, true, {beta}, [beta](auto& x, auto& t) {
                         return jsd(x, t, beta);
                       }});
    return cases;
  }();
  return all;
}

Tensor call(const Case& c, const std::vector<c10::IValue>& before, const c10::IValue& labels, bool by_element) {
  const auto handle = package().handle(c.op + (before.size() == 3 ? "_bwd" : ""));
  std::vector<c10::IValue> stack = before;
  stack.insert(stack.end(), {labels, int64_t{-100}});
  stack.insert(stack.end(), c.options.begin(), c.options.end());
  if (c.op != "jsd") stack.emplace_back(by_element);
  handle.callBoxed(stack);
  return stack[0].toTensor();
}

TEST(Divergences, ForwardAndBackwardMatchFloat64) {
  for (const Case& c : divergences()) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const auto& shape : kShapes) {
        const auto row = [&](bool log) {
          const Tensor z = random_tensor(shape, at::kFloat, 2.0);
          return (log ? at::log_softmax(z, -1) : at::softmax(z, -1)).to(dtype);
        };
        const Tensor x = row(c.log_x), target = row(c.log_target);
        const int64_t rows = x.numel() / shape.back();
        const Tensor labels = (at::arange(rows) % 3 == 1).to(at::kLong).mul(-100).to(device());
        for (const bool by_element : {false, true}) {
          if (by_element && c.op == "jsd") continue;
          const Tensor dloss = by_element ? random_tensor(shape, at::kFloat) : random_tensor({rows}, at::kFloat);
          const Tensor kept = (labels == 0).to(at::kDouble).unsqueeze(1);
          const auto formula = [&](const Tensors& t) {
            const Tensor term = c.term(t[0], target.to(at::kDouble)).reshape({rows, shape.back()}) * kept;
            return Tensors{by_element ? term.view(shape) : term.sum(-1)};
          };
          const auto want = reference(formula, {x}, {dloss});
          for (const auto& [layout, lay_out] : layouts()) {
            const std::string what = describe(c.name, dtype, shape, layout);
            const Tensor z = lay_out(x), t = lay_out(target);
            const Tensor loss = call(c, {z, t}, labels, by_element);
            EXPECT_EQ(loss.scalar_type(), at::kFloat);
            // Terms have both signs: their sums are known as well as p log p, less than 20, is.
            const Tensor terms = by_element ? kept.expand({rows, shape.back()}).reshape(shape) : kept.squeeze(1);
            expect_close(loss, want[0], 5e-6, what, terms);
            const Tensor dx = call(c, {dloss, z, t}, labels, by_element);
            EXPECT_EQ(dx.scalar_type(), dtype);
            // A logarithm of what is nearly 1 is known to a unit of 1, in float64 too: where dx is 0 it is 1e-16 there.
            expect_close(dx, want[1], 2 * tolerance(dtype), what + " dx", want[1].abs().clamp_min(1e-8));
          }
        }
      }
    }
  }
}

TEST(Divergences, OfProbabilitiesThatAreZero) {
  Tensor x = at::log_softmax(random_tensor({3, 40}, at::kFloat), -1), target = at::log_softmax(x.flip(1) * 2, -1);
  x[0].narrow(0, 0, 9).fill_(-INFINITY);
  target[0].narrow(0, 3, 20).fill_(-INFINITY);  // both, and each alone
  for (const double beta : {0.0, 0.5, 1.0}) {
    const Tensor want = jsd(x.to(at::kDouble), target.to(at::kDouble), beta).sum(-1);
    const Tensor got = package().call("jsd", x, target, c10::IValue(), -100, beta)[0];
    EXPECT_EQ(got[0].isinf().item<bool>(), beta != 0.5);
    EXPECT_EQ(want[0].isinf().item<bool>(), beta != 0.5);
    const int64_t first = beta != 0.5;
    expect_close(got.narrow(0, first, 3 - first), want.narrow(0, first, 3 - first), 5e-6, "jsd");
    const Tensor one = at::zeros({3}, at::kFloat).to(device()) + 1;
    for (const at::ScalarType dtype : kDtypes) {
      const Tensor dx = package().call("jsd_bwd", one, x.to(dtype), target.to(dtype), c10::IValue(), -100, beta)[0];
      EXPECT_TRUE(beta != 0.5 || dx.isfinite().all().item<bool>()) << dtype;
    }
  }
  const Tensor p = target.exp();
  const Tensor got = package().call("kl_div", x.clamp_min(-50), p, c10::IValue(), -100, false, 1e-10, false)[0];
  expect_close(got, zero_times(p.to(at::kDouble), p.to(at::kDouble).log() - x.to(at::kDouble).clamp_min(-50)).sum(-1),
               5e-6, "kl");
}

TEST(Divergences, OfLogitsGiveLossAndGradient) {
  for (const double beta : {0.0, 0.3, 1.0}) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const auto& shape : kShapes) {
        const Tensor z = random_tensor(shape, dtype, 2.0), target = random_tensor(shape, dtype, 2.0);
        const Tensor one = at::zeros({z.numel() / shape.back()}, at::kFloat).to(device()) + 1;
        const auto formula = [&](const Tensors& t) {
          const auto logs = [](const Tensor& v) { return at::log_softmax(v.to(at::kDouble) / 0.7, -1); };
          return Tensors{jsd(logs(t[0]), logs(target), beta).sum(-1).flatten()};
        };
        const auto want = reference(formula, {z}, {one});
        for (const auto& [layout, lay_out] : layouts()) {
          const std::string what = describe("of logits " + std::to_string(beta), dtype, shape, layout);
          const Tensor place = lay_out(z.clone());
          if (std::string(layout) == "transposed") continue;
          const Tensor loss = package().call("jsd_of_logits_", place, lay_out(target), beta, 0.7)[0];
          expect_close(loss, want[0], 5e-6, what, one);
          expect_close(place, want[1], 2 * tolerance(dtype), what + " gradient", at::softmax(z.to(at::kDouble), -1));
        }
      }
    }
  }
}

TEST(Divergences, CommonOffsetsOfLogitsCostNoBits) {
  for (const double offset : {-1e4, 1e3, 1e5}) {
    const Tensor z = random_tensor({5, 1003}, at::kFloat) + offset,
                 target = random_tensor({5, 1003}, at::kFloat) - offset;
    const Tensor one = at::zeros({5}, at::kFloat).to(device()) + 1;
    for (const double beta : {0.0, 0.3, 1.0}) {
      const auto formula = [&](const Tensors& t) {
        const auto logs = [](const Tensor& v) { return at::log_softmax(v.to(at::kDouble), -1); };
        return Tensors{jsd(logs(t[0]), logs(target), beta).sum(-1)};
      };
      const auto want = reference(formula, {z}, {one});
      const Tensor place = z.clone();
      const Tensor loss = package().call("jsd_of_logits_", place, target, beta, 1.0)[0];
      expect_close(loss, want[0], 5e-6, "of logits with an offset", one);
      expect_close(place, want[1], 2 * tolerance(at::kFloat), "their gradient", at::softmax(z.to(at::kDouble), -1));
    }
  }
}

TEST(Divergences, BackwardIsTheGradientOfForward) {
  const Tensor x = at::log_softmax(random_tensor({3, 6}, at::kFloat), -1), target = at::log_softmax(x.flip(0), -1);
  const Tensor dloss = random_tensor({3}, at::kFloat);
  for (const double beta : {0.0, 0.4, 1.0}) {
    const auto loss = [&](const Tensors& t) {
      const Tensor rows = package().call("jsd", t[0], target, c10::IValue(), -100, beta)[0];
      return (rows.to(at::kDouble) * dloss).sum().item<double>();
    };
    const Tensor dx = package().call("jsd_bwd", dloss, x, target, c10::IValue(), -100, beta)[0];
    expect_finite_difference(loss, {x}, {dx}, "jsd " + std::to_string(beta));
  }
}

TEST(Probability, SameBitsWithAnyNumberOfThreads) {
  const Tensor x = at::log_softmax(random_tensor({101, 5003}, at::kFloat), -1), target = x.flip(0).contiguous();
  expect_same_with_any_threads(
      [&] {
        Tensors out = {package().call("softmax", x)[0], package().call("sparsemax", x)[0]};
        out.push_back(package().call("jsd", x, target, c10::IValue(), -100, 0.3)[0]);
        out.push_back(x.clone());
        out.push_back(package().call("jsd_of_logits_", out.back(), target, 0.3, 1.0)[0]);
        return out;
      },
      "probability");
}

TEST(Probability, StreamingStoresWriteTheSame) {  // outputs above the threshold, whole vectors a row and not
  for (const int64_t cols : {8192, 8191}) {
    const Tensor x = random_tensor({600, cols}, at::kFloat);
    for (const char* op : {"softmax", "sparsemax"}) {
      const Tensor whole = package().call(op, x)[0];
      expect_equal(whole.narrow(0, 0, 9), package().call(op, x.narrow(0, 0, 9))[0], op);
    }
  }
}

TEST(Probability, RefusesWhatItCannotDo) {
  const Tensor x = random_tensor({3, 8}, at::kFloat), labels = at::zeros({3}, at::kLong).to(device());
  const auto jsd_of = [&](const Tensor& a, const Tensor& b, const c10::IValue& l, double beta) {
    return [=] { package().call("jsd", a, b, l, -100, beta); };
  };
  expect_refusal(jsd_of(x, x.narrow(1, 0, 7), {}, 0.5), {"target in the shape of x, [3, 8]", "got [3, 7]"});
  expect_refusal(jsd_of(x, x.to(at::kHalf), {}, 0.5), {"target in x's dtype, float32; got float16"});
  expect_refusal(jsd_of(x, x, labels.narrow(0, 0, 2), 0.5), {"labels [3] as int64", "got [2]"});
  expect_refusal(jsd_of(x, x, {}, 1.5), {"beta from 0 to 1", "1.5"});
  expect_refusal(jsd_of(x.to(at::kDouble), x.to(at::kDouble), {}, 0.5), {"float32, bfloat16 or float16"});
  expect_refusal([&] { package().call("kl_div", x, x, c10::IValue(), 0, false, -1.0, false); }, {"eps >= 0"});
  expect_refusal([&] { package().call("jsd_of_logits_", x, x, 0.5, 0.0); }, {"temperature > 0"});
  expect_refusal([&] { package().call("jsd_of_logits_", transposed(x), x, 0.5, 1.0); }, {"in place"});
  expect_refusal([&] { package().call("softmax_bwd", x, x.narrow(1, 0, 7)); }, {"dy in the shape of y"});
  expect_refusal([&] { package().call("tvd_bwd", labels, x, x, c10::IValue(), 0, false); }, {"dloss as float32"});
}

TEST(Probability, CallsAreCounted) {
  const int64_t before = package().call_count("softmax"), other = package().call_count("sparsemax");
  package().call("softmax", random_tensor({3, 8}, at::kFloat));
  EXPECT_EQ(package().call_count("softmax"), before + 1);
  EXPECT_EQ(package().call_count("sparsemax"), other);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
