// The gated norm against float64 autograd, and what it refuses.
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>

#include "kernels/common/testing/testing.h"

namespace {

using namespace kernels::testing;
using kernels::package;

constexpr double kEps = 1e-5;
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

struct Case {
  std::vector<int64_t> shape;
  int64_t group;
  bool norm_first;
};

Formula formula(const Case& c) {
  return [c](const Tensors& in) -> Tensors {
    auto grouped = in[0].sizes().vec();
    grouped.back() = c.group > 0 ? grouped.back() / c.group : 0;
    grouped.push_back(c.group);
    const Tensor gate = in[1] * at::sigmoid(in[1]), u = c.norm_first ? in[0] : in[0] * gate;
    const Tensor g = u.view(grouped), n = (g * (g.square().mean(-1, true) + kEps).rsqrt()).view(in[0].sizes());
    return {c.norm_first ? n * in[2] * gate : n * in[2]};
  };
}

// Of dx and dz the sizes of their terms: of du g and its part along n, which in a small group is almost all of g; of
// the gate's slope its two, which cancel near z = -1.3.
Tensors terms_of(const Case& c, const Tensors& in, const Tensor& dy) {
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const Tensor z = wide(in[1]), s = at::sigmoid(z), gate = z * s, slope = s * (1 + z.abs() * (1 - s));
  const Tensor u = c.norm_first ? wide(in[0]) : wide(in[0]) * gate, g = wide(dy) * wide(in[2]);
  auto grouped = u.sizes().vec();
  grouped.back() /= c.group;
  grouped.push_back(c.group);
  const Tensor rstd = (u.view(grouped).square().mean(-1, true) + kEps).rsqrt();
  const Tensor du = 2 * (g.view(grouped) * rstd).view(u.sizes()).abs();
  return {du * gate.abs(), du * wide(in[0]).abs() * slope};
}

// y, dx, dz, dweight
Tensors run(const Case& c, const Tensors& in, const Tensor& dy) {
  const Tensors out = package().call("gated_rms_norm_fwd", in[0], in[1], in[2], kEps, c.group, c.norm_first);
  Tensors results = package().call("gated_rms_norm_bwd", dy, in[0], in[1], in[2], out[1], c.group, c.norm_first);
  results.insert(results.begin(), out[0]);
  const Tensor plain = package().call("gated_rms_norm", in[0], in[1], in[2], kEps, c.group, c.norm_first)[0];
  expect_equal(plain, out[0], "gated_rms_norm and gated_rms_norm_fwd");
  return results;
}

void check(const Case& c, at::ScalarType dtype, at::ScalarType weights) {
  const Tensors in = {random_tensor(c.shape, dtype), random_tensor(c.shape, dtype),
                      random_tensor({c.shape.back()}, weights)};
  const Tensor dy = random_tensor(c.shape, dtype);
  const Tensors got = run(c, in, dy), want = reference(formula(c), in, {dy});
  const Tensors sizes = terms_of(c, in, dy);
  const char* const names[] = {"y", "dx", "dz", "dweight"};
  for (int i = 0; i < 4; ++i) {
    const Tensor& like = i == 0 ? in[0] : in[i - 1];
    EXPECT_EQ(got[i].scalar_type(), like.scalar_type());
    const Tensor terms = i == 1 || i == 2 ? sizes[i - 1] : Tensor();
    expect_close(got[i], want[i], tolerance(like.scalar_type()),
                 std::string(names[i]) + " " + c10::toString(dtype) + " group " + std::to_string(c.group), terms);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool norm_first : {false, true}) {
    for (const auto& [shape, group] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{{{3, 5, 64}, 64},
                                                                                            {{3, 5, 64}, 16},
                                                                                            {{2, 37}, 37},
                                                                                            {{4, 35}, 7},
                                                                                            {{1, 1}, 1},
                                                                                            {{2, 6}, 2},
                                                                                            {{300, 48}, 24},
                                                                                            {{1, 1536}, 1536},
                                                                                            {{2, 1024}, 128},
                                                                                            {{9, 5120}, 5120},
                                                                                            {{5, 8192}, 8192},
                                                                                            {{0, 8}, 4},
                                                                                            {{16}, 8}})
      all.push_back({shape, group, norm_first});
  }
  return all;
}

TEST(GatedNorm, ForwardAndBackwardMatchFloat64) {
  for (const Case& c : cases()) {
    for (const at::ScalarType dtype : kDtypes) {
      check(c, dtype, dtype);
      if (dtype != at::kFloat) check(c, dtype, at::kFloat);
    }
  }
}

// Groups are another function than the whole row, and the order of gate and norm too.
TEST(GatedNorm, GroupsAndOrderTellApart) {
  const Tensors in = {random_tensor({4, 64}, at::kFloat), random_tensor({4, 64}, at::kFloat),
                      random_tensor({64}, at::kFloat)};
  const auto y = [&](int64_t group, bool norm_first) {
    return package().call("gated_rms_norm", in[0], in[1], in[2], kEps, group, norm_first)[0];
  };
  EXPECT_GT((y(64, false) - y(16, false)).abs().max().item<float>(), 0.05f);
  EXPECT_GT((y(64, false) - y(64, true)).abs().max().item<float>(), 0.05f);
}

TEST(GatedNorm, EveryLayout) {
  const Case c{{6, 5, 40}, 20, false};
  const Tensors plain = random_tensors({{6, 5, 40}, {6, 5, 40}, {40}}, at::kBFloat16);
  const Tensor dy = random_tensor(c.shape, at::kBFloat16);
  const Tensors want = run(c, plain, dy);
  for (const auto& [layout, lay_out] : layouts()) {
    for (int i = 0; i < 4; ++i) {
      Tensors in = plain;
      if (i < 3) in[i] = lay_out(in[i]);
      const Tensors got = run(c, in, i == 3 ? lay_out(dy) : dy);
      for (size_t k = 0; k < want.size(); ++k) expect_equal(got[k], want[k], layout);
    }
  }
  const Tensor projected = at::cat({plain[1], plain[0]}, -1);  // the gate is a part of a wider projection
  expect_equal(run(c, {plain[0], projected.narrow(-1, 0, 40), plain[2]}, dy)[0], want[0], "a part of a projection");
}

TEST(GatedNorm, SameBitsWithAnyThreads) {
  const Case c{{3000, 96}, 32, true};
  const Tensors in = random_tensors({c.shape, c.shape, {96}}, at::kFloat);
  const Tensor dy = random_tensor(c.shape, at::kFloat);
  expect_same_with_any_threads([&] { return run(c, in, dy); }, "gated_rms_norm");
}

TEST(GatedNorm, LargeGates) {  // silu of -100 is 0, of 100 is 100, and neither is NaN
  const Tensor z =
      at::cat({random_tensor({2, 8}, at::kFloat) * 0 - 100, random_tensor({2, 8}, at::kFloat) * 0 + 100}, 1);
  for (const bool norm_first : {false, true}) {
    const Case c{{2, 16}, 16, norm_first};
    const Tensors in = {random_tensor(c.shape, at::kFloat), z, random_tensor({16}, at::kFloat)};
    const Tensor dy = random_tensor(c.shape, at::kFloat);
    const Tensors got = run(c, in, dy), want = reference(formula(c), in, {dy});
    for (size_t k = 0; k < want.size(); ++k) expect_close(got[k], want[k], 1e-5, "large gates");
  }
}

TEST(GatedNorm, Refuses) {
  const Tensor x = random_tensor({2, 12}, at::kFloat), w = random_tensor({12}, at::kFloat);
  const auto call = [&](const Tensor& x_, const Tensor& z, const Tensor& weight, int64_t group) {
    package().call("gated_rms_norm", x_, z, weight, kEps, group, false);
  };
  expect_refusal([&] { call(x, x, w, 5); }, {"gated_rms_norm", "divides", "12", "got 5"});
  expect_refusal([&] { call(x, x, w, 0); }, {"divides"});
  expect_refusal([&] { call(x, x.narrow(1, 0, 6), w, 6); }, {"expected z in the shape of x"});
  expect_refusal([&] { call(x, x.to(at::kHalf), w, 6); }, {"z in x's dtype"});
  expect_refusal([&] { call(x, x, w.narrow(0, 0, 6), 6); }, {"weight", "[12]"});
  expect_refusal([&] { call(x.to(at::kDouble), x.to(at::kDouble), w, 6); }, {"float32, bfloat16 or float16"});
  expect_refusal([&] { package().call("gated_rms_norm_bwd", x, x, x, w, at::zeros_like(x).narrow(1, 0, 1), 6, false); },
                 {"rstd", "[2, 2]"});
}

}  // namespace
