// Every op against float64, over masks, shapes and types.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>

#include "kernels/attention/tests/reference.h"

namespace kernels::testing {
namespace {

constexpr at::ScalarType kDTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr double kInf = std::numeric_limits<double>::infinity();

// float32: a score is a sum of dim products, each exact to 6e-8, and errors of a score are errors of its weight. 16
// bits: one rounding of out; weights of bfloat16 are made by an exp of 1e-4. Gradients: out itself was rounded, and its
// error goes into every dx of its row. A GPU rounds weights and dx to 16 bits as well before it multiplies them, a CPU
// that multiplies pairs those of a backward.
double forward_limit(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-6 : (on_cuda() ? 2 : 1.1) * tolerance(dtype);
}
double backward_limit(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : (on_cuda() ? 6 : 3) * tolerance(dtype);
}

// softcap: a GPU's tanh is good to 2^-11 of it.
void expect_lse(const Tensor& got, const Tensor& want, double softcap, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  if (want.numel() == 0) return;
  const Tensor none = want == -kInf;
  EXPECT_TRUE(at::equal(got == -kInf, none)) << what << ": rows that see nothing";
  const Tensor zero = at::zeros({}, want.options());
  const double error = at::where(none, zero, got.to(at::kDouble) - want).abs().max().item<double>();
  EXPECT_LE(error, on_cuda() ? 1e-4 + softcap / 1024 : 2e-5)
      << what << ": lse";  // scores of up to 10, exact to 1e-6; sums of bfloat16's weights to 1e-5
}

// A sum over all rows, whose terms w D (w: the sink's weight, D = dout . out) are each as exact as out, and cancel.
void expect_dsinks(const Inputs& in, const Tensor& got, const Tensor& want, const Tensors& outputs, const Tensor& dout,
                   const std::string& what) {
  const Tensor weights = (in.sinks.to(at::kDouble).view({-1, 1}) - outputs[1]).exp();  // [batch, heads, rows]
  const Tensor terms = weights * (dout.to(at::kDouble) * outputs[0]).sum(3).transpose(1, 2);
  const double allowed =
      backward_limit(in.q.scalar_type()) * (want.norm().item<double>() + terms.norm().item<double>());
  EXPECT_LE((got.to(at::kDouble) - want).norm().item<double>(), allowed) << what;
}

void check(const Inputs& in) {
  const std::string what = in.str() + " " + c10::toString(in.q.scalar_type());
  const auto dtype = in.q.scalar_type();
  const auto& s = in.shape;
  const Tensor dout = random_tensor({s.batch, s.rows, s.heads, s.values()}, dtype);
  const Tensor dlse = random_tensor({s.batch, s.heads, s.rows}, at::kFloat);
  const auto trained = in.call("attention_fwd", {in.q, in.k, in.v});
  // Where lse is -infinity it has no gradient.
  const Tensor dl = at::where(trained[1] == -kInf, at::zeros({}, dlse.options()), dlse);
  const auto plain = reference(formula(in.scale, in.masks, in.slopes), in.tensors(), {dout});
  expect_close(trained[0], plain[0], forward_limit(dtype), what + " out");
  expect_lse(trained[1], plain[1], in.masks.softcap, what);
  expect_equal(in.call("attention", {in.q, in.k, in.v})[0], trained[0], what + " without lse");
  const auto backward = [&](const Tensor& d) {
    return in.call("attention_bwd", {dout, in.q, in.k, in.v, trained[0], trained[1], optional(d)}, true);
  };
  const auto compare = [&](const std::vector<Tensor>& got, const Tensors& want, const std::string& of) {
    const char* names[] = {" dq", " dk", " dv"};
    // dp - D is a difference of sums of value_dim products; with all weight on one key it is 0.
    const double terms = in.scale * std::sqrt(double(s.values()));
    for (size_t n = 0; n < 3; ++n)
      expect_close(got[n], want[2 + n], backward_limit(dtype), what + of + names[n], at::full_like(want[2 + n], terms));
    if (in.sinks.defined()) expect_dsinks(in, got[3], want[5], want, dout, what + of + " dsinks");
    EXPECT_EQ(got[3].numel(), in.sinks.defined() ? s.heads : 0);
  };
  compare(backward(Tensor()), plain, "");
  if (s.rows == 0 || s.keys == 0) return;
  // sum(lse * dl) over rows that see something
  const auto with_lse = [&](const Tensors& leaves) {
    auto both = formula(in.scale, in.masks, in.slopes)(leaves);
    both[1] = at::where(both[1] == -kInf, at::zeros({}, both[1].options()), both[1]);
    return both;
  };
  compare(backward(dl), reference(with_lse, in.tensors(), {dout, dl}), " with dlse");
}

void check_taken(const Shape& shape, const Masks& masks, at::ScalarType dtype) {
  if (device_takes(shape, dtype)) check({shape, masks, dtype});
}

const Masks kMasks[] = {
    {},
    {.causal = true},
    {.causal = true, .left = 5},
    {.left = 9, .right = 3},
    {.right = 0},
    {.causal = true, .chunk = 7},
    {.causal = true, .softcap = 4},
    {.causal = true, .sinks = true},
    {.alibi = true},
    {.causal = true, .left = 20, .chunk = 32, .softcap = 6, .sinks = true, .alibi = true},
};

TEST(Attention, EveryMask) {
  for (const auto dtype : kDTypes) {
    for (const Masks& masks : kMasks) {
      check_taken({.batch = 2, .rows = 37, .keys = 53, .heads = 4, .key_heads = 2, .dim = 24}, masks, dtype);
      check_taken({.rows = 61, .keys = 33, .heads = 6, .key_heads = 1, .dim = 40, .value_dim = 17}, masks, dtype);
      check_taken({.rows = 150, .keys = 333, .heads = 3, .key_heads = 3, .dim = 72, .value_dim = 48}, masks, dtype);
    }
  }
}

// Tiles and blocks of rows, tiles of keys, vectors of numbers: below, at and beyond each.
TEST(Attention, EveryShape) {
  const Shape shapes[] = {
      {.rows = 1, .keys = 1, .dim = 1},
      {.rows = 1, .keys = 130, .dim = 8},
      {.rows = 3, .keys = 700, .heads = 8, .key_heads = 2, .dim = 80},
      {.rows = 17, .keys = 1, .dim = 16},
      {.rows = 193, .keys = 129, .dim = 33},
      {.rows = 200, .keys = 260, .heads = 7, .key_heads = 1, .dim = 16, .value_dim = 64},
      {.rows = 5, .keys = 64, .heads = 71, .key_heads = 1, .dim = 64},
      {.rows = 3, .keys = 9, .heads = 200, .key_heads = 1, .dim = 4},
      {.rows = 20, .keys = 40, .heads = 12, .key_heads = 4, .dim = 192, .value_dim = 128},
      {.rows = 24, .keys = 24, .dim = 256},
      {.rows = 400, .keys = 400, .heads = 1, .key_heads = 1, .dim = 64},
  };
  for (const auto dtype : kDTypes) {
    for (const Shape& shape : shapes) {
      check_taken(shape, {.causal = true}, dtype);
      check_taken(shape, {.left = 100, .sinks = true}, dtype);
    }
  }
}

TEST(Attention, NothingThere) {
  for (const bool sinks : {false, true}) {
    for (const auto& [rows, keys] : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 0}, {0, 0}, {40, 0}}) {
      check({{.batch = 2, .rows = rows, .keys = keys, .dim = 8}, {.causal = true, .sinks = sinks}, exact_dtype()});
    }
    const Inputs none({.batch = 0, .rows = 3, .keys = 3, .dim = 8}, {.sinks = sinks}, exact_dtype());
    const auto y = none.call("attention_fwd", {none.q, none.k, none.v});
    EXPECT_EQ(y[0].sizes(), none.q.sizes());
    EXPECT_EQ(y[1].sizes(), at::IntArrayRef({0, 2, 3}));
    const auto g = none.call("attention_bwd", {y[0], none.q, none.k, none.v, y[0], y[1], c10::IValue()}, true);
    EXPECT_EQ(g[1].sizes(), none.k.sizes());
    if (sinks) expect_equal(g[3], at::zeros({2}, g[3].options()), "dsinks of nobody");
  }
}

TEST(Attention, SmallGradientsByFiniteDifferences) {
  if (on_cuda()) GTEST_SKIP() << "in float32";
  const Inputs in({.rows = 3, .keys = 4, .heads = 2, .key_heads = 1, .dim = 3},
                  {.causal = true, .softcap = 2, .sinks = true}, at::kFloat);
  const Tensor dout = random_tensor({1, 3, 2, 3}, at::kFloat);
  const auto forward = [&](const Tensors& t) {
    Inputs moved = in;
    moved.q = t[0], moved.k = t[1], moved.v = t[2], moved.sinks = t[3];
    return (moved.call("attention", {t[0], t[1], t[2]})[0].to(at::kDouble) * dout).sum().item<double>();
  };
  const auto trained = in.call("attention_fwd", {in.q, in.k, in.v});
  const auto got = in.call("attention_bwd", {dout, in.q, in.k, in.v, trained[0], trained[1], c10::IValue()}, true);
  expect_finite_difference(forward, in.tensors(), got, "attention");
}

// Heads before rows in memory, slices of something larger with NaN around, rows of one token for all, numbers apart.
TEST(Attention, WhereverItLies) {
  for (const auto dtype : kDTypes) {
    if (!device_takes({.rows = 1, .keys = 1, .dim = 24}, dtype)) continue;
    for (const int64_t rows : {3, 30}) {
      const Inputs in({.batch = 2, .rows = rows, .keys = 41, .heads = 4, .key_heads = 2, .dim = 24}, {.causal = true},
                      dtype);
      const auto want = in.call("attention_fwd", {in.q, in.k, in.v});
      const Tensor dout = random_tensor(want[0].sizes(), dtype);
      const auto gradients = [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d) {
        return in.call("attention_bwd", {d, q, k, v, want[0], want[1], c10::IValue()}, true);
      };
      const auto want_gradients = gradients(in.q, in.k, in.v, dout);
      const std::pair<const char*, std::function<Tensor(const Tensor&)>> layouts[] = {
          {"heads first", [](const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }},
          {"a slice",
           [](const Tensor& t) {
             const Tensor all = at::full({t.size(0), t.size(1) + 3, t.size(2) + 1, t.size(3) + 5}, NAN, t.options());
             Tensor inside = all.narrow(1, 2, t.size(1)).narrow(2, 1, t.size(2)).narrow(3, 3, t.size(3));
             return inside.copy_(t);
           }},
          {"numbers apart", [](const Tensor& t) { return t.transpose(0, 3).contiguous().transpose(0, 3); }},
      };
      for (const auto& [name, lay] : layouts) {
        expect_equal(in.call("attention", {lay(in.q), lay(in.k), lay(in.v)})[0], want[0], name);
        const auto got = gradients(lay(in.q), lay(in.k), lay(in.v), lay(dout));
        for (size_t n = 0; n < 3; ++n) expect_equal(got[n], want_gradients[n], name);
      }
    }
  }
}

TEST(Attention, SameBitsWithAnyNumberOfThreads) {
  for (const auto& [rows, keys, batch] : {std::tuple{300, 300, 2}, {2, 3000, 1}}) {
    const Inputs in({.batch = batch, .rows = rows, .keys = keys, .heads = 4, .key_heads = 2, .dim = 32},
                    {.causal = true, .sinks = true}, at::kBFloat16);
    const Tensor dout = random_tensor({batch, rows, 4, 32}, at::kBFloat16);
    expect_same_with_any_threads(
        [&] {
          const auto y = in.call("attention_fwd", {in.q, in.k, in.v});
          auto all = in.call("attention_bwd", {dout, in.q, in.k, in.v, y[0], y[1], c10::IValue()}, true);
          all.insert(all.end(), y.begin(), y.end());
          return all;
        },
        "attention");
  }
}

// Scores that are infinite, or not numbers, reach the rows that see them and no other.
TEST(Attention, WhatIsNoNumber) {
  for (const int64_t rows : {2, 20}) {
    Inputs in({.rows = rows, .keys = 50, .dim = 16}, {.causal = true}, exact_dtype());
    const Tensor want = in.call("attention", {in.q, in.k, in.v})[0];
    in.q[0][rows - 1][1][3] = NAN;
    const Tensor got = in.call("attention", {in.q, in.k, in.v})[0];
    EXPECT_TRUE(got[0][rows - 1][1].isnan().all().item<bool>());
    expect_equal(got.narrow(1, 0, rows - 1), want.narrow(1, 0, rows - 1), "other rows");
    in.q[0][rows - 1][1] = in.q[0][rows - 1][0];
    const Tensor far = at::full({2}, 200.0, in.q.options().dtype(at::kFloat));  // far above every score
    in.masks.sinks = true;
    in.sinks = far;
    const auto sunk = in.call("attention_fwd", {in.q, in.k, in.v});
    EXPECT_LE((sunk[1] - 200.0).abs().max().item<double>(), on_cuda() ? 1e-4 : 0);
    EXPECT_LT(sunk[0].abs().max().item<double>(), 1e-30);
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Inputs in({.batch = 2, .rows = 3, .keys = 5, .heads = 4, .key_heads = 2, .dim = 8}, {}, at::kFloat);
  const auto refuse = [&](const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<std::string>& words) {
    expect_refusal([&] { in.call("attention", {q, k, v}); }, words);
  };
  refuse(in.q[0], in.k, in.v, {"attention: expected q [batch, rows, heads, dim]", "[3, 4, 8]"});
  refuse(in.q.narrow(2, 0, 3), in.k, in.v, {"multiple of the 2 key heads", "got 3"});
  refuse(in.q.narrow(3, 0, 7), in.k, in.v, {"heads of one size", "[2, 3, 4, 7]"});
  refuse(in.q, in.k.to(at::kHalf), in.v, {"attention: expected k in q's dtype, float32; got float16"});
  refuse(in.q.to(at::kDouble), in.k, in.v, {"float32, bfloat16 or float16"});
  refuse(in.q.narrow(0, 0, 1), in.k, in.v, {"one batch size", "1 and 2"});
  Inputs wrong = in;
  wrong.masks.left = -2;
  expect_refusal([&] { wrong.call("attention", {in.q, in.k, in.v}); }, {"window sides", "-2"});
  wrong = in;
  wrong.sinks = at::zeros({3});
  expect_refusal([&] { wrong.call("attention", {in.q, in.k, in.v}); }, {"sinks [4]", "[3]"});
  wrong = in;
  wrong.sinks = at::zeros({4}, at::kDouble);
  expect_refusal([&] { wrong.call("attention", {in.q, in.k, in.v}); }, {"expected sinks in float32", "got float64"});
  wrong = in;
  wrong.slopes = at::zeros({3, 4});
  expect_refusal([&] { wrong.call("attention", {in.q, in.k, in.v}); }, {"alibi_slopes [4] or [2, 4]"});
}

TEST(Attention, RunsTheAskedIsa) { expect_asked_isa(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }
TEST(EveryIsa, Passes) {
  expect_every_isa_passes();
  // This one's own level by name leaves out what is beyond it: products of pairs.
  if (!on_cuda() && package().isa() == "v4") expect_passes_with("HOTSWAP_ISA=v4");
}

}  // namespace
}  // namespace kernels::testing
