// Every op, forward and backward, against float64 ATen.
#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

constexpr double kEps = 1e-5;

struct Variant {
  const char* casting;
  double offset;
};

Tensor rms_norm_formula(const Tensor& x, const Tensor& weight, double offset) {
  return x * (x.pow(2).mean(-1, true) + kEps).rsqrt() * (weight + offset);
}

// A dweight is a sum over rows of terms rounded twice; a few rows may cancel to half the size of their terms.
constexpr double kColumnSum = 4;

// Shapes of x: rows, one column, one row, odd sizes around the vector width, many rows (several chunks of dweight).
const std::vector<std::vector<int64_t>> kShapes = {{1, 1},    {3, 7},     {2, 3, 16}, {1, 33},    {5, 128},
                                                   {7, 577},  {67, 96},   {16},       {199, 131}, {40, 2048},
                                                   {5, 8192}, {3, 16384}, {2, 40000}, {2500, 64}};
const std::vector<std::vector<int64_t>> kEmptyShapes = {{0, 64}, {4, 0, 8}, {3, 0}};
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

std::string describe(const std::vector<int64_t>& shape, at::ScalarType dtype, const std::string& more = "") {
  std::string text = std::string(c10::toString(dtype)) + " [";
  for (const int64_t s : shape) text += std::to_string(s) + " ";
  return text + "] " + more;
}

// dx is a difference: its error is measured against the size of what is subtracted where that is larger (one column:
// dx is almost 0). The weights' rounding with offset enters too, hence 2.
void expect_dx(const Tensor& got, const Tensor& want, const Tensor& dy, double tolerance, const std::string& what) {
  const double error = (got.to(at::kDouble) - want).norm().item<double>();
  const double size = std::max(want.norm().item<double>(), got.size(-1) == 1 ? 10 * dy.norm().item<double>() : 0.0);
  EXPECT_TRUE(error <= 2 * tolerance * size)
      << what << ": error " << error << " of size " << size << "; HOTSWAP_TEST_SEED=" << seed();
}

TEST(Draws, DependOnTheTestAlone) {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  ASSERT_EQ(generator().current_seed(), seed_of(test)) << "set before each test";
  const Tensor first = random_tensor({8}, at::kFloat);
  SeedEachTest().OnTestStart(test);
  EXPECT_TRUE(first.equal(random_tensor({8}, at::kFloat)));
  EXPECT_FALSE(first.equal(random_tensor({8}, at::kFloat))) << "the test could fail";
}

class RmsNorm : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(Casting, RmsNorm,
                         ::testing::Values(Variant{"llama", 0.0}, Variant{"gemma", 1.0}, Variant{"none", 0.0},
                                           Variant{"llama", 1.0}, Variant{"none", 1.0}),
                         [](const auto& info) {
                           return std::string(info.param.casting) + (info.param.offset != 0 ? "_offset" : "");
                         });

TEST_P(RmsNorm, ForwardAndBackwardMatchFloat64) {
  const char* const casting = GetParam().casting;
  const double offset = GetParam().offset;
  const double roundings = offset != 0 ? 3 : 2;  // weight + offset, n, y
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) {
      const auto in = random_tensors({shape, {shape.back()}}, dtype);
      const Tensor dy = random_tensor(shape, dtype);
      const auto want =
          reference([&](const Tensors& t) { return Tensors{rms_norm_formula(t[0], t[1], offset)}; }, in, {dy});
      for (const auto& [layout, lay_out] : layouts()) {
        const std::string what = describe(shape, dtype, layout);
        const Tensor x = lay_out(in[0]), weight = x.is_contiguous() ? in[1] : misaligned(in[1]);
        const auto forward = package().call("rms_norm_fwd", x, weight, kEps, offset, casting);
        const auto backward = package().call("rms_norm_bwd", lay_out(dy), x, weight, forward[1], offset, casting);
        EXPECT_EQ(forward[0].scalar_type(), dtype);
        EXPECT_EQ(forward[1].scalar_type(), at::kFloat);
        EXPECT_TRUE(forward[0].is_contiguous());
        expect_close(forward[0], want[0], tolerance(dtype) * roundings, "y " + what);
        expect_dx(backward[0], want[1], dy, tolerance(dtype), "dx " + what);
        expect_close(backward[1], want[2], tolerance(dtype) * kColumnSum, "dweight " + what);
        const auto inference = package().call("rms_norm", x, weight, kEps, offset, casting);
        expect_equal(inference[0], forward[0], "rms_norm against rms_norm_fwd " + what);
      }
    }
  }
}

TEST_P(RmsNorm, AddRmsNormMatchesFloat64) {
  const char* const casting = GetParam().casting;
  const double offset = GetParam().offset;
  const double roundings = offset != 0 ? 3 : 2;  // weight + offset, n, y
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) {
      const auto in = random_tensors({shape, shape, {shape.back()}}, dtype);
      const auto dys = random_tensors({shape, shape}, dtype);
      // h is rounded before it is normalised: the reference starts from that h
      const Tensor h = (in[0].to(at::kFloat) + in[1].to(at::kFloat)).to(dtype);
      const auto want = reference(
          [&](const Tensors& t) {
            return Tensors{rms_norm_formula(t[0], t[1], offset), t[0] * 1.0};
          },
          {h, in[2]}, dys);
      for (const auto& [layout, lay_out] : layouts()) {
        const std::string what = describe(shape, dtype, layout);
        const auto forward =
            package().call("add_rms_norm_fwd", lay_out(in[0]), lay_out(in[1]), in[2], kEps, offset, casting);
        expect_equal(forward[1], h, "h " + what);
        expect_close(forward[0], want[0], tolerance(dtype) * roundings, "y " + what);
        const auto backward = package().call("add_rms_norm_bwd", lay_out(dys[0]), lay_out(dys[1]), lay_out(forward[1]),
                                             in[2], forward[2], offset, casting);
        expect_dx(backward[0], want[2], dys[0], tolerance(dtype), "dx " + what);
        expect_close(backward[1], want[3], tolerance(dtype) * kColumnSum, "dweight " + what);
        const auto inference =
            package().call("add_rms_norm", lay_out(in[0]), lay_out(in[1]), in[2], kEps, offset, casting);
        expect_equal(inference[0], forward[0], "y " + what);
        expect_equal(inference[1], forward[1], "h " + what);
      }
    }
  }
}

// transformers' LlamaRMSNorm, op by op in its own dtypes: where the casting contract says "llama", bits agree.
TEST(RmsNormCasting, LlamaRoundsAsTransformersDoes) {
  for (const auto x_dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto w_dtype : {x_dtype, at::kFloat}) {
      const Tensor x = random_tensor({37, 96}, x_dtype), w = random_tensor({96}, w_dtype);
      const Tensor wide = x.to(at::kFloat);
      const Tensor n = (wide * (wide.pow(2).mean(-1, true) + kEps).rsqrt()).to(x_dtype);
      const Tensor want = w * n;
      const Tensor got = package().call("rms_norm", x, w, kEps, 0.0, "llama")[0];
      ASSERT_EQ(got.scalar_type(), want.scalar_type());
      // the statistics are summed in another order: a few numbers may round the other way
      const double differ = (got != want).to(at::kDouble).mean().item<double>();
      if (x_dtype != at::kFloat) {
        EXPECT_LT(differ, 0.02) << describe({37, 96}, x_dtype);
      }
      expect_close(got, want, tolerance(x_dtype) / 4 + 2e-6, "llama");
    }
  }
}

TEST(RmsNormCasting, WeightMayBeFloat32UnderBfloat16) {
  for (const char* casting : {"llama", "gemma", "none"}) {
    const Tensor x = random_tensor({35, 40}, at::kBFloat16), w = random_tensor({40}, at::kFloat);
    const auto y_dtype = std::string(casting) == "llama" ? at::kFloat : at::kBFloat16;
    const Tensor dy = random_tensor({35, 40}, y_dtype);
    const auto want =
        reference([&](const Tensors& t) { return Tensors{rms_norm_formula(t[0], t[1], 0)}; }, {x, w}, {dy});
    const auto forward = package().call("rms_norm_fwd", x, w, kEps, 0.0, casting);
    const auto backward = package().call("rms_norm_bwd", dy, x, w, forward[1], 0.0, casting);
    EXPECT_EQ(forward[0].scalar_type(), y_dtype);
    EXPECT_EQ(backward[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(backward[1].scalar_type(), at::kFloat);
    expect_close(forward[0], want[0], tolerance(at::kBFloat16), casting);
    expect_close(backward[0], want[1], tolerance(at::kBFloat16), casting);
    expect_close(backward[1], want[2], tolerance(at::kBFloat16), casting);
  }
}

TEST(LayerNorm, ForwardAndBackwardMatchFloat64) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : kShapes) {
      if (shape.back() == 1) continue;  // its own test: y is the bias, whatever x is
      for (const bool with_bias : {true, false}) {
        auto in = random_tensors({shape, {shape.back()}, {shape.back()}}, dtype);
        in[0] = in[0] + 3;  // a mean far from zero: sums of squares would cancel
        const Tensor dy = random_tensor(shape, dtype);
        const auto want = reference(
            [&](const Tensors& t) {
              const Tensor d = t[0] - t[0].mean(-1, true);
              const Tensor y = d * (d.pow(2).mean(-1, true) + kEps).rsqrt() * t[1];
              return Tensors{with_bias ? y + t[2] : y};
            },
            in, {dy});
        const c10::IValue bias = with_bias ? c10::IValue(in[2]) : c10::IValue();
        for (const auto& [layout, lay_out] : layouts()) {
          const std::string what = describe(shape, dtype, layout);
          const Tensor x = lay_out(in[0]);
          const auto forward = package().call("layer_norm_fwd", x, in[1], bias, kEps);
          expect_close(forward[0], want[0], tolerance(dtype), "y " + what);
          const auto backward = package().call("layer_norm_bwd", lay_out(dy), x, in[1], forward[1], forward[2]);
          expect_close(backward[0], want[1], tolerance(dtype) * 4, "dx " + what);
          expect_close(backward[1], want[2], tolerance(dtype), "dweight " + what);
          if (with_bias) expect_close(backward[2], want[3], tolerance(dtype), "dbias " + what);
          expect_equal(package().call("layer_norm", x, in[1], bias, kEps)[0], forward[0], "layer_norm " + what);
        }
      }
    }
  }
}

TEST(LayerNorm, OneColumnGivesTheBias) {
  const auto in = random_tensors({{5, 1}, {1}, {1}, {5, 1}}, at::kFloat);
  const auto forward = package().call("layer_norm_fwd", in[0], in[1], in[2], kEps);
  expect_close(forward[0], in[2].expand({5, 1}), 1e-6, "y");
  const auto backward = package().call("layer_norm_bwd", in[3], in[0], in[1], forward[1], forward[2]);
  EXPECT_LT(backward[0].abs().max().item<float>(), 1e-4);
}

TEST(Norm, EmptyInputsGiveEmptyOutputsAndZeroSums) {
  for (const auto& shape : kEmptyShapes) {
    const auto in = random_tensors({shape, {shape.back()}, shape}, at::kFloat);
    const auto forward = package().call("rms_norm_fwd", in[0], in[1], kEps, 0.0, "llama");
    EXPECT_EQ(forward[0].sizes(), in[0].sizes());
    const auto backward = package().call("rms_norm_bwd", in[2], in[0], in[1], forward[1], 0.0, "llama");
    expect_equal(backward[1], at::zeros_like(in[1]), "dweight");
    const auto layer = package().call("layer_norm_fwd", in[0], in[1], c10::IValue(), kEps);
    const auto sums = package().call("layer_norm_bwd", in[2], in[0], in[1], layer[1], layer[2]);
    expect_equal(sums[1], at::zeros_like(in[1]), "dweight");
    expect_equal(sums[2], at::zeros_like(in[1]), "dbias");
  }
}

TEST(Norm, ExpandedRowsAreReadInPlace) {
  const Tensor x = random_tensor({1, 40}, at::kFloat).expand({6, 40}), w = random_tensor({40}, at::kFloat);
  const auto got = package().call("rms_norm", x, w, kEps, 0.0, "llama");
  expect_equal(got[0], package().call("rms_norm", x.contiguous(), w, kEps, 0.0, "llama")[0], "expanded");
}

TEST(Norm, NanAndInfinityStay) {
  Tensor x = random_tensor({2, 40}, at::kBFloat16);
  x[0][3] = NAN;
  const Tensor w = at::ones_like(x[0]);
  const Tensor y = package().call("rms_norm", x, w, kEps, 0.0, "llama")[0];
  EXPECT_TRUE(y[0].isnan().all().item<bool>());
  EXPECT_FALSE(y[1].isnan().any().item<bool>());
}

TEST(Norm, BackwardIsTheGradientOfForward) {
  for (const char* casting : {"llama", "gemma", "none"}) {
    const auto in = random_tensors({{3, 5}, {5}, {3, 5}}, at::kFloat);
    const auto loss = [&](const Tensors& t) {
      return (package().call("rms_norm", t[0], t[1], kEps, 0.5, casting)[0].to(at::kDouble) * in[2])
          .sum()
          .item<double>();
    };
    const auto forward = package().call("rms_norm_fwd", in[0], in[1], kEps, 0.5, casting);
    const auto backward = package().call("rms_norm_bwd", in[2], in[0], in[1], forward[1], 0.5, casting);
    expect_finite_difference(loss, {in[0], in[1]}, backward, casting);
  }
  const auto in = random_tensors({{3, 6}, {6}, {6}, {3, 6}}, at::kFloat);
  const auto loss = [&](const Tensors& t) {
    return (package().call("layer_norm", t[0], t[1], t[2], kEps)[0].to(at::kDouble) * in[3]).sum().item<double>();
  };
  const auto forward = package().call("layer_norm_fwd", in[0], in[1], in[2], kEps);
  const auto backward = package().call("layer_norm_bwd", in[3], in[0], in[1], forward[1], forward[2]);
  expect_finite_difference(loss, {in[0], in[1], in[2]}, backward, "layer_norm");
}

TEST(Norm, SameBitsWithAnyNumberOfThreads) {
  const auto in = random_tensors({{1500, 96}, {96}, {1500, 96}}, at::kFloat);
  expect_same_with_any_threads(
      [&] {
        Tensors out = package().call("rms_norm_fwd", in[0], in[1], kEps, 0.0, "llama");
        for (Tensor& t : package().call("rms_norm_bwd", in[2], in[0], in[1], out[1], 0.0, "llama")) out.push_back(t);
        const Tensors layer = package().call("layer_norm_fwd", in[0], in[1], in[1], kEps);
        for (const Tensor& t : package().call("layer_norm_bwd", in[2], in[0], in[1], layer[1], layer[2]))
          out.push_back(t);
        return out;
      },
      "norm");
}

TEST(Norm, StreamingStoresWriteTheSame) {  // outputs above the streaming threshold, aligned rows and not
  for (const int64_t cols : {1024, 1021}) {
    const int64_t rows = 4096;
    const auto in = random_tensors({{rows, cols}, {cols}, {rows, cols}}, at::kFloat);
    const auto whole = package().call("add_rms_norm_fwd", in[0], in[2], in[1], kEps, 0.0, "llama");
    const auto part =
        package().call("add_rms_norm_fwd", in[0].narrow(0, 0, 8), in[2].narrow(0, 0, 8), in[1], kEps, 0.0, "llama");
    expect_equal(whole[0].narrow(0, 0, 8), part[0], "y");
    expect_equal(whole[1], in[0] + in[2], "h");
  }
}

TEST(Norm, RefusesWhatItCannotDo) {
  const auto in = random_tensors({{3, 8}, {8}, {7}}, at::kFloat);
  const auto call = [&](const Tensor& x, const Tensor& w, const char* casting) {
    return [=] { package().call("rms_norm", x, w, kEps, 0.0, casting); };
  };
  expect_refusal(call(in[0], in[2], "llama"), {"rms_norm", "expected weight [8]", "got [7]"});
  expect_refusal(call(in[0], in[1], "lama"), {"llama, gemma or none", "lama"});
  expect_refusal(call(in[0].to(at::kDouble), in[1], "llama"), {"float32, bfloat16 or float16", "got float64"});
  expect_refusal([&] { package().call("add_rms_norm", in[0], in[0].narrow(0, 0, 2), in[1], kEps, 0.0, "llama"); },
                 {"residual", "[3, 8]", "[2, 8]"});
  expect_refusal([&] { package().call("rms_norm_bwd", in[0], in[0], in[1], in[1], 0.0, "llama"); }, {"rstd", "[3]"});
  expect_refusal([&] { package().call_count("no_such_op"); }, {"rms_norm_fwd", "no_such_op"});
}

TEST(Norm, CallsAreCounted) {
  const auto in = random_tensors({{3, 8}, {8}}, at::kFloat);
  const int64_t before = package().call_count("rms_norm");
  package().call("rms_norm", in[0], in[1], kEps, 0.0, "llama");
  EXPECT_EQ(package().call_count("rms_norm"), before + 1);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
