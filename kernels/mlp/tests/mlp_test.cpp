// swiglu, geglu and their backward against float64 ATen.
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

const std::vector<std::vector<int64_t>> kShapes = {{1, 1},   {3, 7}, {2, 3, 16}, {1, 33},   {5, 128},
                                                   {7, 577}, {16},   {4, 24},    {3, 9001}, {9, 8192}};
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

Tensor formula(const std::string& op, const Tensor& gate, const Tensor& up) {
  return (op == "swiglu" ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

class Gated : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Mlp, Gated, ::testing::Values("swiglu", "geglu"));

TEST_P(Gated, ForwardAndBackwardMatchFloat64) {
  const std::string op = GetParam();
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) {
      const auto in = random_tensors({shape, shape}, dtype);
      const Tensor dy = random_tensor(shape, dtype);
      const auto want = reference([&](const Tensors& t) { return Tensors{formula(op, t[0], t[1])}; }, in, {dy});
      const Tensor g = in[0].to(at::kDouble).abs(), u = in[1].to(at::kDouble).abs(), d = dy.to(at::kDouble).abs();
      for (const auto& [layout, lay_out] : layouts()) {
        const std::string what = op + " " + c10::toString(dtype) + " " + layout + " " + std::to_string(shape.back());
        const Tensor gate = lay_out(in[0]), up = lay_out(in[1]);
        const Tensor y = package().call(op, gate, up)[0];
        const auto back = package().call(op + "_bwd", lay_out(dy), gate, up);
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_TRUE(y.is_contiguous());
        expect_close(y, want[0], tolerance(dtype), "y " + what, g * u);  // g (1/2 + ...) cancels in the left tail
        expect_close(back[0], want[1], tolerance(dtype), "dgate " + what, d * u * (g + 1.0));  // s + g s', near zeros
        expect_close(back[1], want[2], tolerance(dtype), "dup " + what, d * g);
      }
    }
  }
}

TEST_P(Gated, HalvesOfAPackedProjectionAreReadInPlace) {
  const Tensor packed = random_tensor({2, 5, 2 * 48}, at::kBFloat16), dy = random_tensor({2, 5, 48}, at::kBFloat16);
  const Tensor gate = packed.narrow(-1, 0, 48), up = packed.narrow(-1, 48, 48);
  expect_equal(package().call(GetParam(), gate, up)[0],
               package().call(GetParam(), gate.contiguous(), up.contiguous())[0], "y");
  const auto got = package().call(GetParam() + "_bwd", dy, gate, up);
  const auto want = package().call(GetParam() + "_bwd", dy, gate.contiguous(), up.contiguous());
  expect_equal(got[0], want[0], "dgate");
  expect_equal(got[1], want[1], "dup");
}

TEST_P(Gated, GradientsInPlaceOfTheInputs) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) {
      const auto in = random_tensors({shape, shape, shape}, dtype);
      const auto want = package().call(GetParam() + "_bwd", in[2], in[0], in[1]);
      for (const auto& place : {&misaligned, &row_strided}) {  // dy's rows
        const Tensor gate = in[0].clone(), up = misaligned(in[1]).contiguous(), dy = (*place)(in[2]);
        package().call(GetParam() + "_bwd_", dy, gate, up);
        const std::string what = std::string(c10::toString(dtype)) + " " + std::to_string(shape.back());
        expect_equal(gate, want[0], "dgate " + what);
        expect_equal(up, want[1], "dup " + what);
        expect_equal(dy, in[2], "dy " + what);
      }
    }
  }
  const Tensor large = random_tensor({4096, 1024}, at::kFloat);  // streaming stores
  const auto want = package().call(GetParam() + "_bwd", large, large, large);
  const Tensor gate = large.clone(), up = large.clone();
  package().call(GetParam() + "_bwd_", large, gate, up);
  expect_equal(gate, want[0], "large dgate");
  expect_equal(up, want[1], "large dup");
}

TEST_P(Gated, OutputAgainInPlaceOfItsGradient) {
  auto shapes = kShapes;
  shapes.push_back({4096, 1024});  // streaming stores
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : shapes) {
      const auto in = random_tensors({shape, shape, shape}, dtype);
      const auto want = package().call(GetParam() + "_bwd", in[2], in[0], in[1]);
      const Tensor y = package().call(GetParam(), in[0], in[1])[0];
      for (const auto& place : {+[](const Tensor& t) { return t.clone(); }, &misaligned}) {
        Tensor gate = in[0].clone(), up = misaligned(in[1]).contiguous(), dy = place(in[2]).contiguous();
        package().call(GetParam() + "_bwd_again_", dy, gate, up);
        const std::string what = std::string(c10::toString(dtype)) + " " + std::to_string(shape.back());
        expect_equal(gate, want[0], "dgate " + what);
        expect_equal(up, want[1], "dup " + what);
        expect_equal(dy, y, "y " + what);
      }
    }
  }
}

TEST_P(Gated, InPlaceRefusesMemoryThatIsSharedOrStrided) {
  const std::string op = GetParam() + "_bwd_";
  const Tensor all = random_tensor({3, 2, 8}, at::kFloat), before = all.clone();
  const Tensor gate = all[0], up = all[1], dy = all[2];
  expect_refusal([&] { package().call(op, dy, gate, gate); }, {op, "overlap", "clone"});
  expect_refusal([&] { package().call(op, gate, gate, up); }, {op, "overlap"});
  expect_refusal([&] { package().call(op, up, gate, up); }, {op, "overlap"});
  const std::string again = GetParam() + "_bwd_again_";
  expect_refusal([&] { package().call(again, up, gate, up); }, {again, "overlap"});
  expect_refusal(
      [&] {
        package().call(again, random_tensor({8, 2}, at::kFloat).t(), gate, up);
      },
      {again, "contiguous dy"});
  const Tensor halves = random_tensor({2, 16}, at::kFloat);
  expect_refusal([&] { package().call(op, dy, halves.narrow(1, 0, 8), halves.narrow(1, 8, 8)); },
                 {op, "contiguous gate and up", "without _"});
  expect_refusal([&] { package().call(op, dy, gate, up.to(at::kHalf)); }, {"up in gate's dtype"});
  expect_equal(all, before, "nothing was written");
  const Tensor none = random_tensor({0, 8}, at::kFloat);
  package().call(op, none, none, none);
}

TEST_P(Gated, LargeNumbersStayFinite) {
  for (const double scale : {1e3, 1e30}) {
    const Tensor gate = random_tensor({4, 40}, at::kFloat, scale), up = random_tensor({4, 40}, at::kFloat);
    const Tensor y = package().call(GetParam(), gate, up)[0];
    expect_close(y, formula(GetParam(), gate.to(at::kDouble), up.to(at::kDouble)), 2e-6, "y");
    for (const Tensor& t : package().call(GetParam() + "_bwd", up, gate, up))
      EXPECT_TRUE(t.isfinite().all().item<bool>());
  }
}

TEST_P(Gated, NanStaysWhereItIs) {
  Tensor gate = random_tensor({2, 40}, at::kFloat);
  const Tensor up = random_tensor({2, 40}, at::kFloat);
  gate[0][3] = NAN;
  EXPECT_EQ(package().call(GetParam(), gate, up)[0].isnan().sum().item<int64_t>(), 1);
}

TEST_P(Gated, EmptyInputs) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, 8}, {3, 0}, {2, 0, 4}}) {
    const Tensor x = random_tensor(shape, at::kFloat);
    EXPECT_EQ(package().call(GetParam(), x, x)[0].sizes(), x.sizes());
    EXPECT_EQ(package().call(GetParam() + "_bwd", x, x, x)[1].sizes(), x.sizes());
  }
}

TEST_P(Gated, BackwardIsTheGradientOfForward) {
  const auto in = random_tensors({{3, 5}, {3, 5}, {3, 5}}, at::kFloat);
  const auto loss = [&](const Tensors& t) {
    return (package().call(GetParam(), t[0], t[1])[0].to(at::kDouble) * in[2]).sum().item<double>();
  };
  expect_finite_difference(loss, {in[0], in[1]}, package().call(GetParam() + "_bwd", in[2], in[0], in[1]), GetParam());
}

TEST_P(Gated, SameBitsWithAnyNumberOfThreads) {
  const auto in = random_tensors({{301, 1001}, {301, 1001}, {301, 1001}}, at::kFloat);
  expect_same_with_any_threads(
      [&] {
        Tensors out = package().call(GetParam(), row_strided(in[0]), in[1]);
        for (const Tensor& t : package().call(GetParam() + "_bwd", in[2], in[0], in[1])) out.push_back(t);
        return out;
      },
      GetParam());
}

TEST_P(Gated, StreamingStoresWriteTheSame) {  // outputs above the threshold, whole vectors a row and not
  for (const int64_t cols : {1024, 1021}) {
    const auto in = random_tensors({{4096, cols}, {4096, cols}}, at::kFloat);
    const Tensor gate = row_strided(in[0]);
    const auto part = [](const Tensor& t) { return t.narrow(0, 0, 8); };
    expect_equal(part(package().call(GetParam(), gate, in[1])[0]),
                 package().call(GetParam(), part(gate), part(in[1]))[0], "y");
    const auto whole = package().call(GetParam() + "_bwd", in[1], in[0], in[1]);
    const auto want = package().call(GetParam() + "_bwd", part(in[1]), part(in[0]), part(in[1]));
    expect_equal(part(whole[0]), want[0], "dgate");
    expect_equal(part(whole[1]), want[1], "dup");
  }
}

TEST_P(Gated, RefusesWhatItCannotDo) {
  const auto in = random_tensors({{3, 8}, {3, 7}}, at::kFloat);
  expect_refusal([&] { package().call(GetParam(), in[0], in[1]); }, {GetParam(), "up in the shape of gate", "[3, 7]"});
  expect_refusal([&] { package().call(GetParam(), in[0], in[0].to(at::kHalf)); }, {"up in gate's dtype"});
  expect_refusal([&] { package().call(GetParam(), in[0].to(at::kDouble), in[0]); }, {"float32, bfloat16 or float16"});
  expect_refusal([&] { package().call(GetParam() + "_bwd", in[1], in[0], in[0]); }, {"dy in the shape of gate"});
}

TEST_P(Gated, CallsAreCounted) {
  const Tensor x = random_tensor({2, 4}, at::kFloat);
  const int64_t before = package().call_count(GetParam()), back = package().call_count(GetParam() + "_bwd");
  package().call(GetParam(), x, x);
  package().call(GetParam() + "_bwd", x, x, x);
  const int64_t in_place = package().call_count(GetParam() + "_bwd_");
  package().call(GetParam() + "_bwd_", x, x.clone(), x.clone());
  EXPECT_EQ(package().call_count(GetParam()), before + 1);
  EXPECT_EQ(package().call_count(GetParam() + "_bwd"), back + 1);
  EXPECT_EQ(package().call_count(GetParam() + "_bwd_"), in_place + 1);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
