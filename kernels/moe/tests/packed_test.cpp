// Experts whose weights are packed, against float64 of the weights that the blocks mean.
#include <ATen/ops/arange.h>

#include "kernels/common/testing/packed_weight.h"
#include "kernels/moe/tests/reference.h"

namespace {

using namespace moe::testing;
using kernels::on_cuda;

const std::vector<at::ScalarType> kTypesOfX = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr const char* kPlain = "plain";

std::string lower(std::string name) {
  for (char& c : name) c = char(std::tolower(c));
  return name;
}

int64_t whole_blocks(const std::string& format, int64_t least) {
  if (format == kPlain) return least;
  const int64_t block = packing_formula(format).block;
  return (least + block - 1) / block * block;
}

// One projection: the op's argument, and its elements [experts, out, in] in float32.
struct Projection {
  std::string format;
  Tensor argument, elements;
};

Projection projection(const std::string& format, int64_t experts, int64_t out, int64_t in, at::ScalarType dtype) {
  const double size = 1 / std::sqrt(double(in));
  if (format == kPlain) {
    const Tensor w = random_tensor({experts, out, in}, dtype, size);
    return {kPlain, w, w.to(at::kFloat)};
  }
  // codes of eight bits are some fifty times those of four
  const double scale = (format == "Q8_0" ? 0.02 : format.ends_with("_K") ? 0.004 : format == "e4m3_g128" ? 0.02 : 0.2);
  const auto [bytes, elements] = random_weight(format, experts * out, in, scale * size, scale * size);
  return {lower(format), bytes.view({experts, out, -1}), elements.to(at::kFloat).view({experts, out, in})};
}

struct Packed {
  Inputs in;  // with the elements as the weights
  Projection up, down;

  Tensor forward() const {
    const Options& o = in.o;
    return package().call("moe_experts_packed", in.x, in.index, in.weights, up.argument, up.format, in.b_up,
                          down.argument, down.format, in.b_down, o.activation, o.alpha, o.limit, o.interleaved,
                          o.transposed, o.scale_input)[0];
  }
};

Packed packed(const Sizes& s, const Options& o, const Tensor& index, at::ScalarType dtype, const Projection& up,
              const Projection& down) {
  Packed p{inputs(s, o, index, dtype), up, down};
  p.in.w_up = laid_out(p.up.elements, o.transposed), p.in.w_down = laid_out(p.down.elements, o.transposed);
  for (Projection* each : {&p.up, &p.down}) {
    if (each->format == kPlain) each->argument = laid_out(each->argument, o.transposed);
  }
  return p;
}

Packed packed(const Sizes& s, const Options& o, const Tensor& index, at::ScalarType dtype, const std::string& up,
              const std::string& down) {
  return packed(s, o, index, dtype, projection(up, s.experts, o.gated() ? 2 * s.inner : s.inner, s.hidden, dtype),
                projection(down, s.experts, s.hidden, s.inner, dtype));
}

void expect_right_packed(const Packed& p, const std::string& what) {
  const at::ScalarType dtype = p.in.x.scalar_type();
  const int64_t before = package().call_count("moe_experts_packed");
  const Tensor y = p.forward();
  EXPECT_EQ(package().call_count("moe_experts_packed"), before + 1);
  ASSERT_EQ(y.scalar_type(), dtype);
  expect_close(y, reference_of(p.in, random_tensor(p.in.x.sizes(), dtype))[0], kRoundings * tolerance(dtype), what);
}

class PackedExperts : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (on_cuda()) GTEST_SKIP() << "packed experts have a kernel only on the CPU";
  }
  static std::string format() { return GetParam(); }
};

std::vector<std::string> formats() {
  std::vector<std::string> names;
  for (const PackingFormula& packing : all_packings()) names.emplace_back(packing.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Formats, PackedExperts, ::testing::ValuesIn(formats()),
                         [](const auto& info) { return info.param; });

// Steps of one and of a few tokens, a prompt; experts without tokens, outputs that fill no unit and no tile.
TEST_P(PackedExperts, MatchFloat64) {
  for (const int layout : {0, 1, 2, 3}) {
    Options o{.activation = layout == 2 ? "relu2" : layout == 3 ? "swiglu_oai" : "swiglu", .bias = layout % 2 == 1};
    o.interleaved = layout == 3, o.scale_input = layout == 1;
    Sizes s{.top_k = 3, .experts = 5, .hidden = whole_blocks(format(), 96), .inner = whole_blocks(format(), 40)};
    const Projection up = projection(format(), s.experts, o.gated() ? 2 * s.inner : s.inner, s.hidden, at::kFloat),
                     down = projection(format(), s.experts, s.hidden, s.inner, at::kFloat);
    for (const at::ScalarType dtype : kTypesOfX) {
      for (const int64_t tokens : {1, 2, 5, 33, 150}) {
        s.tokens = tokens;
        const Packed p = packed(s, o, some_routing(s), dtype, up, down);
        expect_right_packed(p, o.text() + ", " + std::to_string(tokens) + " tokens, " + c10::toString(dtype));
      }
    }
  }
}

// Slabs of which the last is short, more rows than a panel serves, and a projection of each kind.
TEST_P(PackedExperts, OfWideRowsManyRowsAndTwoFormats) {
  const std::string other = format() == "Q8_0" ? "Q4_0" : "Q8_0";
  const int64_t wide = whole_blocks(format(), 1100);
  const Sizes few{.tokens = 3, .top_k = 2, .experts = 3, .hidden = wide, .inner = 416};
  expect_right_packed(packed(few, {}, some_routing(few), at::kBFloat16, format(), other), "few rows");
  const Sizes many{.tokens = 530, .top_k = 1, .experts = 2, .hidden = 64, .inner = whole_blocks(format(), 64)};
  const Tensor all_to_one = at::ones({many.tokens, 1}, at::kLong);
  expect_right_packed(packed(many, {.bias = true}, all_to_one, at::kFloat, "Q8_0", format()), "all to one");
  for (const bool transposed : {false, true}) {
    const Sizes s{.tokens = 9, .top_k = 2, .experts = 5, .hidden = whole_blocks(format(), 64), .inner = 37};
    const Options o{.transposed = transposed, .bias = true};
    expect_right_packed(packed(s, o, some_routing(s), at::kFloat, format(), kPlain), o.text() + ", down plain");
    const Sizes t{.tokens = 40, .top_k = 2, .experts = 3, .hidden = 37, .inner = whole_blocks(format(), 64)};
    expect_right_packed(packed(t, o, some_routing(t), at::kFloat, kPlain, format()), o.text() + ", up plain");
  }
}

// A token's bits depend neither on the other tokens' choices nor on the number of threads.
TEST_P(PackedExperts, ATokenHasTheSameBitsInAnyCompany) {
  const Sizes s{.tokens = 70,
                .top_k = 2,
                .experts = 6,
                .hidden = whole_blocks(format(), 1056),
                .inner = whole_blocks(format(), 96)};
  const Packed p = packed(s, {.bias = true}, some_routing(s), at::kBFloat16, format(), format());
  const Tensor all = p.forward();
  for (const int64_t token : {0, 1, 2, 31, 69}) {
    Packed one = p;
    one.in.x = p.in.x.narrow(0, token, 1), one.in.index = p.in.index.narrow(0, token, 1);
    one.in.weights = p.in.weights.narrow(0, token, 1);
    expect_equal(one.forward(), all.narrow(0, token, 1), "token " + std::to_string(token));
  }
  expect_same_with_any_threads([&] { return Tensors{p.forward()}; }, format());
}

TEST_P(PackedExperts, NoTokens) {
  const Sizes s{.tokens = 0, .hidden = whole_blocks(format(), 64), .inner = whole_blocks(format(), 32)};
  const Packed p = packed(s, {.bias = true}, at::empty({0, 3}, at::kLong), at::kFloat, format(), format());
  EXPECT_EQ(p.forward().sizes(), p.in.x.sizes());
  const Sizes t{.tokens = 4, .top_k = 1, .hidden = s.hidden, .inner = s.inner};
  Packed unused = packed(t, {}, at::full({4, 1}, -1, at::kLong), at::kFloat, format(), format());
  EXPECT_EQ(unused.forward().abs().sum().item<float>(), 0);
}

// Blocks of experts that no token chose are not read: here their scales are NaN.
TEST_P(PackedExperts, ExpertsWithoutTokensAreNotRead) {
  const Sizes s{.tokens = 6, .top_k = 2, .experts = 4, .hidden = whole_blocks(format(), 64), .inner = 256};
  const Tensor index = at::tensor({0, 2}, at::kLong).expand({6, 2});
  Packed p = packed(s, {}, index, at::kFloat, format(), format());
  const Tensor before = p.forward();
  for (Projection* each : {&p.up, &p.down}) {
    for (const int64_t e : {1, 3}) each->argument[e].fill_(0xff);
  }
  expect_equal(p.forward(), before, "y");
}

TEST(PackedExpertsArguments, AreRefusedWhereTheyDoNotFit) {
  if (on_cuda()) GTEST_SKIP() << "packed experts have a kernel only on the CPU";
  const Sizes s{.tokens = 2, .top_k = 1, .experts = 3, .hidden = 64, .inner = 32};
  const Tensor index = at::zeros({2, 1}, at::kLong);
  const Packed good = packed(s, {}, index, at::kFloat, "Q8_0", "Q4_0");
  const auto refusal = [&](const std::function<void(Packed&)>& change, const std::vector<std::string>& words) {
    Packed bad = good;
    change(bad);
    expect_refusal([&] { bad.forward(); }, words);
  };
  refusal([](Packed& p) { p.up.format = "q3_k"; }, {"plain, q8_0", "mxfp4", "got \"q3_k\"", "dequantise"});
  refusal([](Packed& p) { p.up.format = "q4_0"; }, {"w_up [3, 64, 36] in uint8", "got [3, 64, 68]"});
  refusal([](Packed& p) { p.down.format = "q8_0"; }, {"w_down in rows of whole blocks of 34 bytes", "rows of 18"});
  refusal([](Packed& p) { p.up.argument = p.up.argument.narrow(1, 0, 62).contiguous(); },
          {"w_up [3, 64, 68]", "[3, 62, 68]"});
  refusal([](Packed& p) { p.up.argument = p.up.argument.view(at::kChar); }, {"in uint8", "int8"});
  refusal([](Packed& p) { p.down.argument = p.down.argument.narrow(0, 0, 2); }, {"w_down [3, 64, 18]", "[2, 64, 18]"});
  refusal([](Packed& p) { p.up.argument = p.up.argument[0]; }, {"of three dimensions, experts first"});
  refusal(
      [](Packed& p) {
        p.up.argument = at::cat({p.up.argument, p.up.argument}, 2).narrow(2, 0, 68);
      },
      {"contiguous"});
  refusal([](Packed& p) { p.in.x = at::zeros({2, 32}); }, {"w_up [3, 64, 34]", "[3, 64, 68]"});
}

}  // namespace
