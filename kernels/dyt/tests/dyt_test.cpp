// Dynamic tanh against float64 ATen, and what it refuses.
#include <ATen/ops/tanh.h>

#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

Tensors formula(const Tensors& t) {
  const Tensor y = at::tanh(t[0] * t[1]) * t[2];
  return {t.size() == 4 ? y + t[3] : y};
}

TEST(Dyt, ForwardAndBackwardMatchFloat64) {
  const std::vector<std::vector<int64_t>> shapes = {{1, 1}, {3, 7}, {2, 3, 64}, {199, 577}, {40, 4100}, {0, 9}};
  for (const at::ScalarType dtype : kDtypes) {
    for (const at::ScalarType weights : {dtype, at::kFloat}) {
      for (const auto& shape : shapes) {
        for (const bool beta : {true, false}) {
          const int64_t cols = shape.back();
          Tensors in = {random_tensor(shape, dtype), random_tensor({1}, weights), random_tensor({cols}, weights)};
          if (beta) in.push_back(random_tensor({cols}, weights));
          const Tensor dy = random_tensor(shape, dtype);
          const auto want = reference(formula, in, {dy});
          for (const auto& [layout, lay_out] : layouts()) {
            const std::string what = std::string(c10::toString(dtype)) + " " + layout + (beta ? "" : ", no beta") +
                                     " cols " + std::to_string(cols);
            const c10::IValue b = beta ? c10::IValue(in[3]) : c10::IValue();
            const Tensor x = lay_out(in[0]);
            const Tensor y = package().call("dyt", x, in[1], in[2], b)[0];
            EXPECT_EQ(y.scalar_type(), dtype);
            expect_close(y, want[0], tolerance(dtype), what);
            const auto got = package().call("dyt_bwd", lay_out(dy), x, in[1], in[2]);
            expect_close(got[0], want[1], tolerance(dtype), what + " dx");
            // dalpha is one sum of all, whose terms have both signs
            const Tensor terms = (in[0] * dy).to(at::kDouble).norm().view({1});
            expect_close(got[1], want[2], tolerance(weights), what + " dalpha", 4 * terms);
            expect_close(got[2], want[3], tolerance(weights), what + " dgamma", in[2].abs() + 1);
            if (beta) expect_close(got[3], want[4], tolerance(weights), what + " dbeta", in[2].abs() + 1);
          }
        }
      }
    }
  }
}

TEST(Dyt, LargeNumbersSaturate) {
  const Tensor x = random_tensor({4, 33}, at::kFloat, 1e4), one = random_tensor({1}, at::kFloat).abs() + 1;
  const Tensor gamma = random_tensor({33}, at::kFloat);
  expect_close(package().call("dyt", x, one, gamma, c10::IValue())[0], x.sign() * gamma, 1e-6, "y");
  EXPECT_TRUE(package().call("dyt_bwd", x, x, one, gamma)[0].isfinite().all().item<bool>());
}

TEST(Dyt, BackwardIsTheGradientOfForward) {
  const Tensors in = random_tensors({{3, 5}, {1}, {5}, {5}}, at::kFloat);
  const Tensor dy = random_tensor({3, 5}, at::kFloat);
  const auto loss = [&](const Tensors& t) {
    return (package().call("dyt", t[0], t[1], t[2], t[3])[0].to(at::kDouble) * dy).sum().item<double>();
  };
  expect_finite_difference(loss, in, package().call("dyt_bwd", dy, in[0], in[1], in[2]), "dyt");
}

TEST(Dyt, SameBitsWithAnyNumberOfThreads) {
  const Tensors in = random_tensors({{1001, 577}, {1}, {577}}, at::kFloat);
  expect_same_with_any_threads(
      [&] {
        Tensors out = package().call("dyt_bwd", in[0], in[0], in[1], in[2]);
        out.push_back(package().call("dyt", in[0], in[1], in[2], in[2])[0]);
        return out;
      },
      "dyt");
}

TEST(Dyt, StreamingStoresWriteTheSame) {  // outputs above the threshold, whole vectors a row and not
  for (const int64_t cols : {8192, 8191}) {
    const Tensor x = random_tensor({600, cols}, at::kFloat), gamma = random_tensor({cols}, at::kFloat);
    const Tensor alpha = random_tensor({1}, at::kFloat), few = x.narrow(0, 0, 9);
    expect_equal(package().call("dyt", x, alpha, gamma, gamma)[0].narrow(0, 0, 9),
                 package().call("dyt", few, alpha, gamma, gamma)[0], "dyt");
  }
}

TEST(Dyt, RefusesWhatItCannotDo) {
  const Tensor x = random_tensor({3, 8}, at::kFloat), one = random_tensor({1}, at::kFloat);
  const Tensor gamma = random_tensor({8}, at::kFloat);
  const auto call = [&](const Tensor& t, const Tensor& a, const Tensor& g) {
    return [=] { package().call("dyt", t, a, g, c10::IValue()); };
  };
  expect_refusal(call(x, gamma, gamma), {"expected alpha [1]", "got [8]"});
  expect_refusal(call(x, one, one), {"expected gamma [8]", "got [1]"});
  expect_refusal(call(x.to(at::kDouble), one, gamma), {"float32, bfloat16 or float16"});
  expect_refusal([&] { package().call("dyt_bwd", x.to(at::kHalf), x, one, gamma); }, {"dy in x's dtype"});
  expect_refusal([&] { package().call("dyt_bwd", x.narrow(0, 0, 2), x, one, gamma); }, {"dy in the shape of x"});
}

TEST(Dyt, CallsAreCounted) {
  const Tensors in = random_tensors({{3, 8}, {1}, {8}}, at::kFloat);
  const int64_t before = package().call_count("dyt"), other = package().call_count("dyt_bwd");
  package().call("dyt", in[0], in[1], in[2], c10::IValue());
  EXPECT_EQ(package().call_count("dyt"), before + 1);
  EXPECT_EQ(package().call_count("dyt_bwd"), other);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
