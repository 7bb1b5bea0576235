#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <cstdlib>
#include <functional>
#include <limits>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {
namespace {

constexpr at::ScalarType kDTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

c10::IValue optional(const Tensor& t) { return t.defined() ? c10::IValue(t) : c10::IValue(); }

Formula formula(bool with_bias) {
  return [with_bias](const Tensors& in) {
    return Tensors{at::linear(in[0], in[1], with_bias ? std::optional<Tensor>(in[2]) : std::nullopt)};
  };
}

// Rows on both sides of what the kernels take, 4 on the CPU and 16 on a GPU; widths below, at and beyond one vector
// pair of every ISA, whole vectors or not, and outputs that do not fill a group or a tile.
TEST(Linear, ForwardAndBackwardMatchFloat64) {
  for (const auto dtype : kDTypes) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17}) {
      for (const auto& [out, width] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {3, 31}, {4, 32}, {7, 65}, {33, 576}, {9, 1032}, {8, 2056}, {6, 4096}, {11, 4104}, {5, 14336}}) {
        for (const bool with_bias : {false, true}) {
          const std::string what =
              "rows " + std::to_string(rows) + ", out " + std::to_string(out) + ", in " + std::to_string(width);
          auto in = random_tensors({{rows, width}, {out, width}}, dtype);
          if (with_bias) in.push_back(random_tensor({out}, dtype));
          const Tensor dy = random_tensor({rows, out}, dtype);
          const auto want = reference(formula(with_bias), in, {dy});
          const int64_t before = package().call_count("linear");
          const Tensor y = package().call("linear", in[0], in[1], optional(with_bias ? in[2] : Tensor()))[0];
          EXPECT_EQ(package().call_count("linear"), before + 1);
          EXPECT_EQ(y.scalar_type(), dtype);
          // few terms may cancel: of the sizes of the terms
          const Tensor d = dy.to(at::kDouble).abs();
          const Tensors wide = {in[0].to(at::kDouble).abs(), in[1].to(at::kDouble).abs()};
          Tensor terms = wide[0].matmul(wide[1].t());
          if (with_bias) terms = terms + in[2].to(at::kDouble).abs();
          expect_close(y, want[0], tolerance(dtype), what + " y", terms);
          const auto grads = package().call("linear_bwd", dy, in[0], in[1], with_bias);
          expect_close(grads[0], want[1], tolerance(dtype), what + " dx", d.matmul(wide[1]));
          expect_close(grads[1], want[2], tolerance(dtype), what + " dweight", d.t().matmul(wide[0]));
          if (with_bias) expect_close(grads[2], want[3], tolerance(dtype), what + " dbias", d.sum(0));
        }
      }
    }
  }
}

// Of 16 bits on a CPU whose instructions do not multiply them, within HOTSWAP_ISA. torch's library is slow there.
bool is_slow_in_torch(at::ScalarType dtype) {
#if defined(__x86_64__)
  const char* isa = std::getenv("HOTSWAP_ISA");
  const bool capped = isa != nullptr && *isa != '\0' && std::string(isa) != "v4";
  if (!device().is_cpu() || dtype == at::kFloat) return false;
  return capped ||
         !(dtype == at::kBFloat16 ? __builtin_cpu_supports("avx512bf16") : __builtin_cpu_supports("avx512fp16"));
#else
  return false;
#endif
}

// How often `run` calls torch's products, and how often it copies to another dtype.
struct TorchCalls {
  int products = 0, casts = 0;
};
TorchCalls torch_calls(const std::function<void()>& run) {
  static TorchCalls found;
  found = {};
  const auto count = [](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
    const std::string_view name = fn.name();
    found.products += name == "aten::linear" || name == "aten::mm" || name == "aten::addmm";
    found.casts += name == "aten::_to_copy";
    return nullptr;
  };
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  return found;
}

// More rows than tiles, blocks and parts have; each row's bits are those that it has beside others.
TEST(Linear, ManyRowsOf16Bits) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const bool slow = is_slow_in_torch(dtype);
    for (const auto& [out, width] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 32}, {97, 576}, {50, 1056}, {7, 2080}}) {
      for (const int64_t rows : {5, 6, 35, 512, 513, 1027}) {
        const std::string what = std::to_string(rows) + "x" + std::to_string(width) + " to " + std::to_string(out);
        const Tensor x = random_tensor({rows, width + 8}, dtype).narrow(1, 3, width);
        const Tensor w = random_tensor({out, width + 3}, dtype).narrow(1, 1, width), bias = random_tensor({out}, dtype);
        Tensor y;
        const int products = torch_calls([&] { y = package().call("linear", x, w, bias)[0]; }).products;
        EXPECT_EQ(products == 0, slow) << what;
        const Tensor wide_x = x.to(at::kDouble), wide = w.to(at::kDouble), wide_bias = bias.to(at::kDouble);
        expect_close(y, wide_x.matmul(wide.t()) + wide_bias, tolerance(dtype), what,
                     wide_x.abs().matmul(wide.abs().t()) + wide_bias.abs());
        if (!slow) continue;
        const Tensor few = package().call("linear", x.narrow(0, rows - 5, 5), w, bias)[0];
        expect_equal(few, y.narrow(0, rows - 5, 5), what + ", five of them");
      }
    }
  }
}

// Odd widths, and gradients: by torch's library, in float32 where 16 bits are slow there.
TEST(Linear, TorchMultipliesInFloat32WhereItIsFaster) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor x = random_tensor({9, 70}, dtype), w = random_tensor({11, 70}, dtype),
                 dy = random_tensor({9, 11}, dtype);
    const auto calls = torch_calls([&] {
      EXPECT_EQ(package().call("linear", x, w, c10::IValue())[0].scalar_type(), dtype);
      for (const Tensor& grad : package().call("linear_bwd", dy, x, w, false)) EXPECT_EQ(grad.scalar_type(), dtype);
    });
    EXPECT_GE(calls.products, device().is_cpu() ? 3 : 2);
    EXPECT_EQ(calls.casts, is_slow_in_torch(dtype) ? 3 * 3 : 0) << "of both operands and the result of each product";
  }
}

// A vocabulary's outputs: more than blocks take at once.
TEST(Linear, ManyOutputs) {
  for (const auto dtype : kDTypes) {
    for (const int64_t width : {64, 1024}) {
      for (const int64_t rows : {1, 8, 16}) {
        const Tensor x = random_tensor({rows, width}, dtype), weight = random_tensor({50003, width}, dtype);
        const Tensor y = package().call("linear", x, weight, c10::IValue())[0];
        const Tensor wide_x = x.to(at::kDouble), wide = weight.to(at::kDouble);
        const std::string what = std::to_string(rows) + " of " + std::to_string(width);
        expect_close(y, wide_x.matmul(wide.t()), tolerance(dtype), what, wide_x.abs().matmul(wide.abs().t()));
        expect_equal(package().call("linear", x, weight, c10::IValue())[0], y, what + " again");
      }
    }
  }
}

TEST(Linear, EveryLayoutGivesTheSame) {
  for (const auto dtype : kDTypes) {
    const Tensor x = random_tensor({3, 70}, dtype), w = random_tensor({9, 70}, dtype);
    const Tensor want = package().call("linear", x, w, c10::IValue())[0];
    for (const auto& [name, lay_out] : layouts()) {
      const double limit = 2 * tolerance(dtype);  // a transposed weight is a GEMM, which rounds in another order
      expect_close(package().call("linear", lay_out(x), w, c10::IValue())[0], want, limit, std::string("x ") + name);
      expect_close(package().call("linear", x, lay_out(w), c10::IValue())[0], want, limit,
                   std::string("weight ") + name);
    }
  }
}

TEST(Linear, EmptyShapes) {
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes).to(device()); };
  EXPECT_EQ(package().call("linear", zeros({0, 8}), zeros({3, 8}), c10::IValue())[0].sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(package().call("linear", zeros({2, 1, 8}), zeros({0, 8}), c10::IValue())[0].sizes(),
            at::IntArrayRef({2, 1, 0}));
  expect_equal(package().call("linear", zeros({2, 0}), zeros({3, 0}), c10::IValue())[0], zeros({2, 3}), "no columns");
}

TEST(Linear, SameBitsWithAnyNumberOfThreads) {
  const Tensor x = random_tensor({2, 300}, at::kBFloat16), w = random_tensor({1001, 300}, at::kBFloat16);
  expect_same_with_any_threads([&] { return package().call("linear", x, w, c10::IValue()); }, "linear");
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes).to(device()); };
  const Tensor w = zeros({3, 8});
  expect_refusal([&] { package().call("linear", zeros({1, 7}), w, c10::IValue()); }, {"expected x [..., 8]", "[1, 7]"});
  expect_refusal(
      [&] {
        package().call("linear", zeros({1, 8}).to(at::kHalf), w, c10::IValue());
      },
      {"linear: expected weight in x's dtype, float16; got float32"});
  expect_refusal([&] { package().call("linear", zeros({1, 8}), w, zeros({4})); }, {"expected bias [3]"});
  expect_refusal(
      [&] {
        package().call("linear_bwd", zeros({1, 4}), zeros({1, 8}), w, false);
      },
      {"expected dy [..., 3]"});
  expect_refusal(
      [&] {
        package().call("linear_bwd", zeros({1, 3}), zeros({1, 8}), zeros({8}), false);
      },
      {"linear_bwd: expected x [..., in] and weight [out, in]; got [1, 8] and [8]"});
  expect_refusal(
      [&] {
        package().call("linear_bwd", zeros({1, 3}), zeros({1, 8}).to(at::kInt), w, false);
      },
      {"linear_bwd: expected x in dy's dtype, float32; got int32"});
  expect_refusal([&] { package().call("linear_bwd", zeros({}), zeros({}), w, false); }, {"got [] and [3, 8]"});
  expect_refusal([&] { package().call("linear_bwd", zeros({1, 3}), zeros({1, 7}), w, false); }, {"got [1, 7]"});
}

c10::IValue none() { return {}; }

// Said as well, among four others.
Tensor largest(const Tensor& x) {
  const int64_t rows = x.numel() / x.size(-1);
  const auto full = [](at::IntArrayRef sizes, int64_t value) {
    return at::full(sizes, value, at::TensorOptions(at::kLong).device(device()));
  };
  const Tensor place = full({rows}, -1), alone = full({rows}, -1), said = full({5, rows}, -2), at = full({1}, 3);
  package().call("largest_", place, x, said, at);
  package().call("largest_", alone, x, none(), none());
  expect_equal(alone, place, "without being said");
  expect_equal(said[3], place, "said");
  expect_equal(said.index_select(0, at::tensor({0, 1, 2, 4}).to(device())), full({4, rows}, -2), "not said");
  return place;
}

// In float64 on the CPU: of equal numbers the first one's place, -0 is 0, and NaN is larger than all.
TEST(Linear, LargestIsWhereTorchFindsIt) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : kDTypes) {
    const auto check = [&](const Tensor& x, const std::string& what) {
      const Tensor want = at::argmax(x.to(at::kCPU, at::kDouble).reshape({-1, x.size(-1)}), -1);
      expect_equal(largest(x), want.to(device()), what);
    };
    for (const int64_t cols : {1, 7, 33, 4096, 32773, 151936}) {
      for (const int64_t rows : {1, 16}) {
        const std::string what = std::to_string(rows) + " x " + std::to_string(cols);
        Tensor x = random_tensor({rows, cols}, dtype);  // of so many 16-bit numbers the largest ones are equal
        check(x, what);
        check(x.round(), what + " rounded");
        if (cols > 1) check(x.narrow(1, 1, cols - 1), what + " from the second on");
        x[rows - 1][cols / 2] = kInf;
        check(x, what + " with an infinity");
        check(x.narrow(1, 0, cols / 2 + 1), what + " up to there");
        x[0][cols - 1] = kNan;
        check(x, what + " with NaN at the end");
      }
    }
    const auto made = [&](std::vector<double> numbers) { return at::tensor(numbers, at::kDouble).to(device(), dtype); };
    check(made({-0.0, 0.0}), "zeros");
    check(made({0.0, -0.0}), "zeros the other way round");
    check(made({-kInf, -kInf, -kInf}), "nothing larger");
    check(made({1, -kNan, kNan}), "two NaN");
    check(made({-3, -2, -7, -2}), "below zero");
    for (const auto& [name, lay_out] : layouts()) check(lay_out(random_tensor({2, 70}, dtype)), name);
  }
  EXPECT_EQ(largest(at::zeros({0, 5}).to(device())).numel(), 0);
}

TEST(Linear, LargestRefusesWhatDoesNotFit) {
  const auto place = [](int64_t rows, at::ScalarType type = at::kLong) { return at::zeros({rows}, type).to(device()); };
  const auto x = [](at::IntArrayRef sizes) { return at::zeros(sizes).to(device()); };
  const auto refused = [](const Tensor& at, const Tensor& x, const std::vector<std::string>& words) {
    expect_refusal([&] { package().call("largest_", at, x, none(), none()); }, words);
  };
  refused(place(2), x({2, 0}), {"at least one", "[2, 0]"});
  refused(place(3), x({2, 4}), {"expected place as 2 int64", "[3]"});
  refused(place(2, at::kInt), x({2, 4}), {"expected place as 2 int64", "int32"});
  refused(place(2), x({2, 4}).to(at::kLong), {"expected x in float32, bfloat16 or float16; got int64; cast it"});
  const auto said = [&](const c10::IValue& where, const c10::IValue& at) {
    return [=] { package().call("largest_", place(2), x({2, 4}), where, at); };
  };
  const Tensor wide = at::zeros({3, 3}, at::kLong).to(device()), fits = at::zeros({3, 2}, at::kLong).to(device());
  expect_refusal(said(fits, none()), {"expected said and at, or neither"});
  expect_refusal(said(wide, place(1)), {"expected said [places, 2]", "[3, 3]"});
  expect_refusal(said(fits, place(2)), {"expected at as one int64", "got [2]"});
}

TEST(Linear, RunsTheAskedIsa) { expect_asked_isa(); }
TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
}  // namespace kernels::testing
