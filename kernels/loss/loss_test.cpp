// Cross-entropy and linear cross-entropy against float64 ATen, and the memory that the latter takes.
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/memory.h"
#include "kernels/common/testing/testing.h"
#define HOTSWAP_ISA base
#include "kernels/loss/loss.h"
#include "kernels/loss/loss_cuda.h"

namespace {

using namespace kernels::testing;
using kernels::on_cuda;
using kernels::package;

constexpr int64_t kIgnore = -100;

Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype) { return at::zeros(shape, dtype).to(device()); }

struct Options {
  double label_smoothing = 0, softcap = 0, z_loss = 0;
  const char* reduction = "mean";
};
const std::vector<Options> kOptions = {
    {},
    {.reduction = "sum"},
    {.reduction = "none"},
    {.label_smoothing = 0.1},
    {.softcap = 5, .reduction = "sum"},
    {.z_loss = 1e-2, .reduction = "none"},
    {.label_smoothing = 0.2, .softcap = 3, .z_loss = 1e-2},
    {.label_smoothing = 0.2, .softcap = 3, .z_loss = 1e-2, .reduction = "none"},
};
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

std::string describe(const Options& o, at::ScalarType dtype, const std::string& more) {
  return std::string(c10::toString(dtype)) + " smoothing " + std::to_string(o.label_smoothing) + " softcap " +
         std::to_string(o.softcap) + " z " + std::to_string(o.z_loss) + " " + o.reduction + " " + more;
}

Tensor formula(const Tensor& logits, const Tensor& target, const Options& o) {
  const Tensor u = o.softcap > 0 ? o.softcap * (logits / o.softcap).tanh() : logits;
  const Tensor valid = (target != kIgnore).to(at::kDouble);
  const Tensor row = at::cross_entropy_loss(u, target, {}, at::Reduction::None, kIgnore, o.label_smoothing) +
                     o.z_loss * at::logsumexp(u, -1).pow(2) * valid;
  const std::string reduction = o.reduction;
  return reduction == "none" ? row : reduction == "sum" ? row.sum() : row.sum() / valid.sum();
}

// Targets of which about every fifth row, and always the last, is ignored.
Tensor random_target(int64_t rows, int64_t vocab) {
  Tensor t = at::randint(vocab, {rows}, generator(), at::kLong);
  for (int64_t row = rows > 1 ? rows - 1 : rows; row >= 0 && row < rows; row -= 5) t[row] = kIgnore;
  return t.to(device());
}
Tensor random_dloss(const Options& o, int64_t rows) {
  return std::string(o.reduction) == "none" ? random_tensor({rows}, at::kFloat) : random_tensor({}, at::kFloat);
}

// Sizes of the terms of each dlogits: a sure row's are a difference of nearly equal numbers, and e^(u - lse) is known
// as well as lse is.
Tensor gradient_terms(const Tensor& logits, const Tensor& target, const Tensor& dloss, const Options& o) {
  const Tensor z = logits.to(at::kDouble), u = o.softcap > 0 ? o.softcap * (z / o.softcap).tanh() : z;
  const Tensor lse = at::logsumexp(u, -1, true), row = at::arange(z.size(0), at::kLong).to(device());
  const Tensor valid = (target != kIgnore).to(at::kDouble).unsqueeze(1);
  Tensor terms =
      (u - lse).exp() * (2 * o.z_loss * lse + 1).abs() * lse.abs().clamp_min(1) + o.label_smoothing / z.size(1);
  terms = terms.index_put({row, target.clamp_min(0)}, at::ones({z.size(0)}, at::kDouble).to(device()),
                          /*accumulate=*/true) *
          valid;
  const Tensor g = dloss.to(at::kDouble).abs();
  const std::string reduction = o.reduction;
  return terms * (reduction == "none" ? g.unsqueeze(1) : reduction == "sum" ? g : g / valid.sum());
}

Tensors cross_entropy(const char* op, const Tensor& logits, const Tensor& target, const Options& o) {
  return package().call(op, logits, target, kIgnore, o.label_smoothing, o.softcap, o.z_loss, o.reduction);
}
Tensor cross_entropy_bwd(const Tensor& dloss, const Tensor& logits, const Tensor& target, const Tensor& lse,
                         const Options& o) {
  return package().call("cross_entropy_bwd", dloss, logits, target, lse, kIgnore, o.label_smoothing, o.softcap,
                        o.z_loss, o.reduction)[0];
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
  expect_close(dz, want[1], 2e-5, "dlogits");  // lse up to 3e4 is known to 2^-9 at best
  logits[0][2600] = NAN;
  EXPECT_TRUE(cross_entropy("cross_entropy", logits, target, {})[0].isnan().item<bool>());
}

TEST(CrossEntropy, IgnoreIndexMayBeAToken) {
  const Tensor logits = random_tensor({4, 9}, at::kFloat), target = zeros({4}, at::kLong);
  target[1] = 3;
  const auto got = package().call("cross_entropy", logits, target, 3, 0.0, 0.0, 0.0, "mean")[0];
  const Tensor want = at::cross_entropy_loss(logits.to(at::kDouble), target, {}, at::Reduction::Mean, 3);
  expect_close(got, want, 1e-6, "loss");
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

TEST(CrossEntropy, TargetsOutsideOfTheVocabularyAreRefusedOrNanOnAGpu) {
  const Tensor logits = random_tensor({3, 8}, at::kFloat);
  Tensor target = zeros({3}, at::kLong);
  target[2] = 8;
  const Options none{.reduction = "none"};
  if (!on_cuda()) {
    return expect_refusal([&] { cross_entropy("cross_entropy_fwd", logits, target, none); },
                          {"targets from 0 to 7", "got 8 in row 2"});
  }
  const auto got = cross_entropy("cross_entropy_fwd", logits, target, none);
  EXPECT_TRUE(got[0][2].isnan().item<bool>());
  EXPECT_FALSE(got[0].narrow(0, 0, 2).isnan().any().item<bool>());
  const Tensor dz = cross_entropy_bwd(zeros({3}, at::kFloat) + 1, logits, target, got[1], none);
  EXPECT_TRUE(dz[2].isnan().all().item<bool>());
}

TEST(CrossEntropy, BackwardIsTheGradientOfForward) {
  for (const Options& o : kOptions) {
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

// hidden, weight, bias -> loss and gradients, as the host uses the ops
Tensors linear_forward_backward(const Tensors& in, const Tensor& target, const Tensor& dloss, const Options& o,
                                bool with_bias) {
  const c10::IValue bias = with_bias ? c10::IValue(in[2]) : c10::IValue();
  const auto options = [&](const char* op, auto... first) {
    return package().call(op, first..., kIgnore, o.label_smoothing, o.softcap, o.z_loss, o.reduction);
  };
  Tensors out = options("linear_cross_entropy_fwd", in[0], in[1], bias, target);
  if (std::string(o.reduction) == "none") {
    EXPECT_EQ(out[2].numel() + out[3].numel() + out[4].numel(), 0);
    const auto back = options("linear_cross_entropy_bwd", dloss, in[0], in[1], bias, target, out[1]);
    return {out[0], back[0], back[1], back[2]};
  }
  // the backward op makes the same gradients again, from the logits
  const auto back = options("linear_cross_entropy_bwd", dloss, in[0], in[1], bias, target, out[1]);
  for (int i = 0; i < 3; ++i) {
    expect_close(back[i], out[i + 2].to(at::kDouble) * dloss.to(at::kDouble), 2 * tolerance(in[0].scalar_type()),
                 "backward op against forward's gradient " + std::to_string(i));
  }
  const auto scaled = [&](const Tensor& t) { return t.to(at::kDouble) * dloss.to(at::kDouble); };
  return {out[0], scaled(out[2]), scaled(out[3]), scaled(out[4])};
}

void expect_linear_matches(const std::vector<int64_t>& shape, at::ScalarType dtype, const Options& o, bool with_bias) {
  const int64_t rows = shape[0], vocab = shape[1], dim = shape[2];
  const std::string more = "rows " + std::to_string(rows) + " vocab " + std::to_string(vocab);
  Tensors in = random_tensors({{rows, dim}, {vocab, dim}, {vocab}}, dtype);
  in[1] = in[1] * (1.0 / std::sqrt(double(dim)));
  const Tensor target = random_target(rows, vocab), dloss = random_dloss(o, rows);
  const auto want = reference(
      [&](const Tensors& t) {
        const Tensor logits = t[0].matmul(t[1].t());
        return Tensors{formula(with_bias ? logits + t[2] : logits, target, o)};
      },
      in, {dloss});
  const Tensor logits = in[0].to(at::kDouble).matmul(in[1].to(at::kDouble).t());
  const Tensor largest = logits.abs().max() + in[2].to(at::kDouble).abs().max();
  for (const auto& [layout, lay_out] : layouts()) {
    const std::string what = describe(o, dtype, layout) + " " + more + (with_bias ? " bias" : "");
    const auto got = linear_forward_backward({lay_out(in[0]), lay_out(in[1]), in[2]}, target, dloss, o, with_bias);
    // Logits are rounded to the dtype, as a stock head does: an error of its unit roundoff times |logit| in each.
    expect_close(got[0] + largest, want[0] + largest, 2 * tolerance(dtype), "loss " + what);
    expect_close(got[1], want[1], 2 * tolerance(dtype), "dhidden " + what);
    expect_close(got[2], want[2], 2 * tolerance(dtype), "dweight " + what);
    if (with_bias) expect_close(got[3], want[3], 2 * tolerance(dtype), "dbias " + what);
    const c10::IValue bias = with_bias ? c10::IValue(in[2]) : c10::IValue();
    const auto inference = package().call("linear_cross_entropy", lay_out(in[0]), lay_out(in[1]), bias, target, kIgnore,
                                          o.label_smoothing, o.softcap, o.z_loss, o.reduction);
    expect_equal(inference[0], got[0], "inference " + what);
    if (vocab > 10000) break;  // one layout of the large ones
  }
}

TEST(LinearCrossEntropy, ForwardAndBackwardMatchFloat64) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const Options& o : kOptions) {
      expect_linear_matches({9, 131, 24}, dtype, o, true);
      expect_linear_matches({12, 64, 16}, dtype, o, false);
    }
    expect_linear_matches({1, 33, 8}, dtype, {}, true);
  }
}

TEST(LinearCrossEntropy, ManyChunksMatchFloat64) {  // more rows than a chunk holds, more vocabulary than a weight block
  // a fifth of the rows is ignored; what is left must take two chunks
  ASSERT_LT(loss::chunk_rows(990 * 4 / 5, 4), 990 * 4 / 5);
  ASSERT_LT(loss::chunk_rows(1950 * 4 / 5, 2), 1950 * 4 / 5);
  expect_linear_matches({990, 1021, 8}, at::kFloat, {}, true);
  expect_linear_matches({1950, 9001, 8}, at::kBFloat16, {.label_smoothing = 0.1, .reduction = "none"}, true);
  expect_linear_matches({1950, 1021, 8}, at::kHalf, {}, false);
}

TEST(LinearCrossEntropy, DweightMayBeSummedInFloat32) {
  const auto dweight = [](const Tensors& in, const Tensor& target, bool wide) {
    return package().call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target, kIgnore, 0.0, 0.0, 0.0,
                          "sum", wide)[3];
  };
  if (!on_cuda()) {  // the CPU always sums so
    const Tensors in = random_tensors({{1950, 8}, {1021, 8}}, at::kBFloat16);
    const Tensor target = random_target(1950, 1021);
    return expect_equal(dweight(in, target, true), dweight(in, target, false), "dweight");
  }
  const int64_t rows = 4096, vocab = 1 << 20, dim = 16;
  ASSERT_EQ(rows / loss::cuda::chunk_rows(rows, vocab, 2), 32);
  // Terms of one sign: the sum grows, and so does what each rounding of it loses.
  const Tensors in = {random_tensor({rows, dim}, at::kBFloat16).abs(), random_tensor({vocab, dim}, at::kBFloat16)};
  const Tensor target = random_target(rows, vocab);
  const Tensor exact = dweight({in[0].to(at::kFloat), in[1].to(at::kFloat)}, target, false).to(at::kDouble);
  const auto error = [&](bool wide) {
    return ((dweight(in, target, wide).to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
  };
  const double narrow_error = error(false), wide_error = error(true);
  EXPECT_LT(wide_error, 2 * tolerance(at::kBFloat16));
  EXPECT_LT(wide_error, 0.8 * narrow_error) << narrow_error;
}

TEST(LinearCrossEntropy, ChunksAreEqualAndSmallBesideAllRows) {
  for (const int64_t size : {4, 2}) {
    for (int64_t rows = 0; rows < 20000; rows += 37) {
      const int64_t chunk = loss::chunk_rows(rows, size);
      EXPECT_LE(chunk, rows);
      EXPECT_LE(2 * chunk, 3 * loss::kChunkRows * 4 / size);
      if (2 * rows >= 3 * loss::kChunkRows * 4 / size) {
        EXPECT_LE(2 * chunk, rows + 1);
      }
      if (rows >= 8 * loss::kChunkRows * 4 / size) {
        EXPECT_LE(7 * chunk, rows);
      }
    }
  }
}

TEST(LinearCrossEntropy, ChunksFitTheirBytes) {
  for (const int64_t vocab : {8, 50257, 128256}) {
    for (const int64_t rows : {0, 1, 1000, 8192, 32768, 1 << 20}) {
      for (const int64_t bytes : {int64_t{1}, int64_t{60} << 20, loss::cuda::kChunkBytes}) {
        const int64_t chunk = loss::cuda::chunk_rows(rows, vocab, 2, bytes);
        EXPECT_LE(chunk, rows);
        EXPECT_LE(chunk * vocab * 2, std::max(bytes, 128 * vocab * 2));
        EXPECT_GE(chunk, std::min<int64_t>(rows, 128));
        const int64_t on_cpu = loss::chunk_rows(rows, 2, vocab, bytes);
        EXPECT_LE(on_cpu * vocab * 2, std::max(bytes, vocab * 2));
        EXPECT_GE(on_cpu, std::min<int64_t>(rows, 1));
      }
    }
  }
  EXPECT_EQ(loss::cuda::chunk_rows(8192, 128256, 2), 1024);
}

// Chunks of a few rows; on a GPU the first rows' logits lie in dweight's own memory: all of it, a part, beside more
// rows.
TEST(LinearCrossEntropy, SmallChunksMatchFloat64) {
  const auto expect = [](const std::vector<int64_t>& shape, at::ScalarType dtype, const Options& o) {
    const int64_t rows = shape[0], vocab = shape[1], dim = shape[2];
    Tensors in = random_tensors({{rows, dim}, {vocab, dim}}, dtype);
    in[1] = in[1] * (1.0 / std::sqrt(double(dim)));
    const Tensor target = random_target(rows, vocab), dloss = random_dloss(o, rows);
    const auto want =
        reference([&](const Tensors& t) { return Tensors{formula(t[0].matmul(t[1].t()), target, o)}; }, in, {dloss});
    const Tensor largest = in[0].to(at::kDouble).matmul(in[1].to(at::kDouble).t()).abs().max();
    for (const int64_t bytes : {int64_t{1}, 300 * vocab * 2}) {
      const auto call = [&](const char* op, auto... first) {
        return package().call(op, first..., kIgnore, o.label_smoothing, o.softcap, o.z_loss, o.reduction, false, bytes);
      };
      auto got = call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target);
      const auto back = call("linear_cross_entropy_bwd", dloss, in[0], in[1], c10::IValue(), target, got[1]);
      const std::string what = describe(o, dtype, "rows " + std::to_string(rows) + " bytes " + std::to_string(bytes));
      expect_close(got[0] + largest, want[0] + largest, 2 * tolerance(dtype), "loss " + what);
      // dweight is rounded once a chunk: six of them leave up to as many times the error of one.
      expect_close(back[0], want[1], 2 * tolerance(dtype), "dhidden " + what);
      expect_close(back[1], want[2], 6 * tolerance(dtype), "dweight " + what);
      if (std::string(o.reduction) == "none") continue;
      const auto scaled = [&](const Tensor& t) { return t.to(at::kDouble) * dloss.to(at::kDouble); };
      expect_close(scaled(got[2]), want[1], 2 * tolerance(dtype), "forward's dhidden " + what);
      expect_close(scaled(got[3]), want[2], 6 * tolerance(dtype), "forward's dweight " + what);
    }
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const Options& o : kOptions) expect({300, 131, 256}, dtype, o);
    expect({700, 1021, 264}, dtype, {});
    expect({700, 1021, 512}, dtype, {});
    expect({512, 61, 512}, dtype, {});
  }
}

TEST(LinearCrossEntropy, BackwardIsTheGradientOfForward) {
  for (const Options& o : kOptions) {
    const auto in = random_tensors({{4, 3}, {6, 3}, {6}}, at::kFloat);
    const Tensor target = random_target(4, 6), dloss = random_dloss(o, 4);
    const auto loss = [&](const Tensors& t) {
      return (package()
                  .call("linear_cross_entropy", t[0], t[1], t[2], target, kIgnore, o.label_smoothing, o.softcap,
                        o.z_loss, o.reduction)[0]
                  .to(at::kDouble) *
              dloss)
          .sum()
          .item<double>();
    };
    const auto got = linear_forward_backward(in, target, dloss, o, true);
    expect_finite_difference(loss, in, {got[1], got[2], got[3]}, describe(o, at::kFloat, "linear"));
  }
}

TEST(LinearCrossEntropy, AllRowsIgnoredAndNoRows) {
  for (const int64_t rows : {0, 5}) {
    const auto in = random_tensors({{rows, 8}, {11, 8}, {11}}, at::kBFloat16);
    const Tensor target = zeros({rows}, at::kLong) + kIgnore;
    const auto got =
        package().call("linear_cross_entropy_fwd", in[0], in[1], in[2], target, kIgnore, 0.0, 0.0, 0.0, "mean");
    EXPECT_TRUE(got[0].isnan().item<bool>());
    for (int i : {2, 3, 4}) expect_equal(got[i], at::zeros_like(in[i - 2]), "gradient " + std::to_string(i));
  }
}

TEST(LinearCrossEntropy, SameLossWithAnyNumberOfThreads) {  // the GEMMs are torch's: their bits are its affair
  const auto in = random_tensors({{300, 16}, {5003, 16}}, at::kFloat);
  const Tensor target = random_target(300, 5003);
  const auto run = [&] {
    return package().call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target, kIgnore, 0.0, 0.0, 0.0,
                          "mean");
  };
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = run();
  at::set_num_threads(2);
  const auto two = run(), again = run();
  at::set_num_threads(before);
  for (int i : {0, 1, 2, 3}) {
    expect_close(two[i], one[i], 1e-6, "output " + std::to_string(i));
    expect_equal(again[i], two[i], "the same run again, output " + std::to_string(i));
  }
}

TEST(LinearCrossEntropy, PeakMemoryStaysUnderItsBound) {
  if (std::getenv("HOTSWAP_ISA") != nullptr) GTEST_SKIP() << "memory does not depend on the ISA";
  const int64_t rows = 2048, vocab = 16384, dim = 32;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto in = random_tensors({{rows, dim}, {vocab, dim}}, dtype);
    const Tensor target = random_target(rows, vocab);
    const int64_t eager = peak_bytes([&] {
      at::AutoGradMode grad(true);
      const Tensor h = in[0].detach().requires_grad_(true), w = in[1].detach().requires_grad_(true);
      at::cross_entropy_loss(h.matmul(w.t()).to(at::kFloat), target).backward();
    });
    const int64_t ours = peak_bytes([&] {
      package().call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target, kIgnore, 0.0, 0.0, 0.0, "mean");
    });
    // one chunk of logits, both gradients, and where 16 bits take several chunks the fp32 sum of dweight
    const int64_t size = dtype == at::kFloat ? 4 : 2, weight = vocab * dim;
    const int64_t valid = (target != kIgnore).sum().item<int64_t>();
    // On a GPU all these rows are one chunk, which dweight is summed over in its own type.
    const int64_t chunk = (on_cuda() ? rows : loss::chunk_rows(valid, size)) * vocab * size;
    const int64_t sums = size == 2 && !on_cuda() ? weight * 4 : 0;
    const int64_t bound = chunk + rows * dim * 2 * size + weight * size + sums + (int64_t{1} << 20);
    EXPECT_LE(ours, bound) << c10::toString(dtype);
    const int64_t times = on_cuda() ? 2 : 4;
    EXPECT_LE(ours * times, eager) << c10::toString(dtype) << ": one " << times << "th of the eager way";
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
  const auto linear = [&](const Tensor& h, const Tensor& w, const c10::IValue& b, const Tensor& t) {
    return [=] { package().call("linear_cross_entropy", h, w, b, t, kIgnore, 0.0, 0.0, 0.0, "mean"); };
  };
  const auto in = random_tensors({{3, 4}, {8, 4}, {8, 5}, {7}}, at::kFloat);
  expect_refusal(linear(in[0], in[2], {}, target), {"hidden [rows, dim] and weight [vocab, dim]", "[8, 5]"});
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
