// Every op, forward and backward, against float64 ATen.
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>

#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

Tensor silu(const Tensor& x) { return x * at::sigmoid(x); }
Tensor gelu(const Tensor& x) { return 0.5 * x * (1.0 + at::erf(x * M_SQRT1_2)); }
Tensor gelu_tanh(const Tensor& x) {
  return 0.5 * x * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3.0))));
}
Tensor gelu_fast(const Tensor& x) { return 0.5 * x * (1.0 + at::tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))); }
Tensor gelu_quick(const Tensor& x) { return x * at::sigmoid(1.702 * x); }
Tensor relu_squared(const Tensor& x) { return x.clamp_min(0).square(); }

struct Act {
  const char* name;
  Tensor (*formula)(const Tensor&);
  bool and_mul = false;
};
const std::vector<Act> kActs = {{"silu", silu},
                                {"gelu", gelu},
                                {"gelu_tanh", gelu_tanh},
                                {"gelu_new", gelu_tanh},
                                {"gelu_fast", gelu_fast},
                                {"gelu_quick", gelu_quick},
                                {"relu_squared", relu_squared},
                                {"silu_and_mul", silu, true},
                                {"gelu_and_mul", gelu, true},
                                {"gelu_tanh_and_mul", gelu_tanh, true}};

Tensor apply(const Act& act, const Tensor& x) {
  if (!act.and_mul) return act.formula(x);
  const int64_t half = x.size(-1) / 2;
  return act.formula(x.narrow(-1, 0, half)) * x.narrow(-1, half, half);
}

class Activation : public ::testing::TestWithParam<Act> {};
INSTANTIATE_TEST_SUITE_P(Ops, Activation, ::testing::ValuesIn(kActs), [](const auto& info) { return info.param.name; });

const std::vector<std::vector<int64_t>> kShapes = {{1, 2},    {3, 14},   {2, 3, 16}, {66},      {7, 578},
                                                   {37, 130}, {2, 4098}, {3, 20006}, {600, 24}, {5, 48}};

// Sizes of the terms that may cancel: act(x) = x (1/2 + ...) in the left tail, act'(x) = s + x s' near its zeros.
Tensor value_terms(const Act& act, const Tensor& x) {
  Tensor a = x.to(at::kDouble).abs();
  if (!act.and_mul) return a;
  return a.narrow(-1, 0, x.size(-1) / 2) * a.narrow(-1, x.size(-1) / 2, x.size(-1) / 2);
}
Tensor gradient_terms(const Act& act, const Tensor& x, const Tensor& dy) {
  const Tensor a = x.to(at::kDouble).abs(), g = dy.to(at::kDouble).abs();
  if (!act.and_mul) return g * (a + 1.0);
  const Tensor gate = a.narrow(-1, 0, x.size(-1) / 2), up = a.narrow(-1, x.size(-1) / 2, x.size(-1) / 2);
  return at::cat({g * up * (gate + 1.0), g * gate}, -1);
}

TEST_P(Activation, ForwardAndBackwardMatchFloat64) {
  const Act act = GetParam();
  const std::string name = act.name;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& shape : kShapes) {
      auto y_shape = shape;
      if (act.and_mul) y_shape.back() /= 2;
      const Tensor x = random_tensor(shape, dtype, 2.0), dy = random_tensor(y_shape, dtype);
      const auto want = reference([&](const Tensors& t) { return Tensors{apply(act, t[0])}; }, {x}, {dy});
      for (const auto& [layout, lay_out] : layouts()) {
        const std::string what = name + " " + c10::toString(dtype) + " " + layout;
        const Tensor y = package().call(name, lay_out(x))[0];
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_TRUE(y.is_contiguous());
        expect_close(y, want[0], tolerance(dtype), "y " + what, value_terms(act, x));
        const Tensor dx = package().call(name + "_bwd", lay_out(dy), lay_out(x))[0];
        expect_close(dx, want[1], tolerance(dtype), "dx " + what, gradient_terms(act, x, dy));
      }
    }
  }
}

// Every value, not the norm of all: far tails, where a product of small numbers could lose everything.
TEST_P(Activation, EachValueIsAsCloseAsItsTypeAllows) {
  const Act act = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor gate = at::linspace(-12, 12, 4801, at::kFloat).to(dtype).unsqueeze(1).to(device());
    const Tensor x = act.and_mul ? gate.expand({-1, 2}).contiguous() : gate;
    const Tensor want = apply(act, x.to(at::kDouble)), got = package().call(act.name, x)[0];
    // rounding through the formula; gelu's integral is near 1 or near 0 to 2e-7 only, as 0.5 (1 + erf) is
    const bool gelu = std::string(act.name).rfind("gelu", 0) == 0;
    const Tensor allowed = want.abs() * (1.5 * tolerance(dtype)) + value_terms(act, x) * (gelu ? 2e-7 : 0) +
                           (dtype == at::kHalf ? 3e-8 : 1e-30);
    const Tensor share = (got.to(at::kDouble) - want).abs() / allowed;
    EXPECT_TRUE((share <= 1).all().item<bool>())
        << act.name << " " << c10::toString(dtype) << ": worst " << share.max().item<double>() << " at "
        << gate[share.argmax().item<int64_t>()].item<float>();
  }
}

TEST_P(Activation, BackwardIsTheGradientOfForward) {
  const std::string name = GetParam().name;
  const Tensor x = random_tensor({3, 10}, at::kFloat);
  const Tensor dy = random_tensor({3, GetParam().and_mul ? 5 : 10}, at::kFloat);
  const auto loss = [&](const Tensors& t) {
    return (package().call(name, t[0])[0].to(at::kDouble) * dy).sum().item<double>();
  };
  expect_finite_difference(loss, {x}, package().call(name + "_bwd", dy, x), name);
}

TEST_P(Activation, EmptyInfiniteAndNan) {
  const std::string name = GetParam().name;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{0, 8}, {3, 0}, {4, 0, 2}}) {
    const Tensor x = random_tensor(shape, at::kBFloat16), y = package().call(name, x)[0];
    EXPECT_EQ(y.numel(), 0);
    EXPECT_EQ(package().call(name + "_bwd", y, x)[0].sizes(), x.sizes());
  }
  const Tensor x = at::tensor({INFINITY, NAN, 1e30f, -1e30f}, at::kFloat).unsqueeze(1).to(device());
  const Tensor in = GetParam().and_mul ? at::ones_like(x).expand({4, 2}) * x : x, y = package().call(name, in)[0];
  EXPECT_TRUE(std::isinf(y[0].item<float>()));
  EXPECT_TRUE(std::isnan(y[1].item<float>()));
  EXPECT_FALSE(std::isnan(y[2].item<float>()));
  EXPECT_EQ(y[3].item<float>(), 0.f);
  const Tensor slopes = package().call(name + "_bwd", at::ones_like(y), in)[0].narrow(0, 2, 2);
  EXPECT_FALSE(slopes.isnan().any().item<bool>()) << slopes;
}

TEST_P(Activation, SameBitsWithAnyNumberOfThreads) {
  const std::string name = GetParam().name;
  const Tensor x = random_tensor({301, 642}, at::kFloat);
  const Tensor dy = random_tensor({301, GetParam().and_mul ? 321 : 642}, at::kFloat);
  expect_same_with_any_threads(
      [&] {
        return Tensors{package().call(name, x)[0], package().call(name + "_bwd", dy, x)[0]};
      },
      name);
}

TEST(ActivationMemory, StreamingStoresWriteTheSame) {  // outputs above the streaming threshold
  for (const int64_t cols : {4096, 4094}) {
    const Tensor x = random_tensor({1100, cols}, at::kFloat);
    const Tensor dy = random_tensor({1100, cols}, at::kFloat);
    expect_equal(package().call("silu", x)[0][1099], package().call("silu", x[1099])[0], "silu");
    expect_equal(package().call("gelu_bwd", dy, x)[0][1099], package().call("gelu_bwd", dy[1099], x[1099])[0],
                 "gelu_bwd");
    const Tensor wide = x.view({-1, 2 * cols}), wide_dy = dy.view({-1, 2 * cols}).narrow(1, 0, cols);
    expect_equal(package().call("silu_and_mul_bwd", wide_dy, wide)[0][549],
                 package().call("silu_and_mul_bwd", wide_dy[549], wide[549])[0], "silu_and_mul_bwd");
  }
}

TEST(ActivationChecks, RefusesWhatItCannotDo) {
  const Tensor x = random_tensor({3, 7}, at::kFloat);
  expect_refusal([&] { package().call("silu_and_mul", x); }, {"silu_and_mul", "even", "[3, 7]"});
  expect_refusal([&] { package().call("silu", x.to(at::kLong)); }, {"silu", "float32, bfloat16 or float16"});
  expect_refusal([&] { package().call("gelu_bwd", x.narrow(0, 0, 2), x); }, {"dy", "[3, 7]", "[2, 7]"});
  expect_refusal([&] { package().call("gelu_bwd", x.to(at::kHalf), x); }, {"dy", "dtype"});
  expect_refusal([&] { package().call("silu_and_mul_bwd", x, x.narrow(1, 0, 6)); }, {"dy", "[3, 7]"});
}

TEST(ActivationChecks, CallsAreCounted) {
  const int64_t before = package().call_count("gelu_fast_bwd");
  const Tensor x = random_tensor({3, 8}, at::kFloat);
  package().call("gelu_fast_bwd", x, x);
  EXPECT_EQ(package().call_count("gelu_fast_bwd"), before + 1);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
