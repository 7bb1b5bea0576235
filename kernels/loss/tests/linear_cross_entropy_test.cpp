// Linear cross-entropy against float64 ATen, and the memory that it takes.
#include <ATen/ops/cross_entropy_loss.h>

#include "kernels/common/testing/memory.h"
#define HOTSWAP_ISA base
#include "kernels/loss/cuda/loss.h"
#include "kernels/loss/loss.h"
#include "kernels/loss/tests/loss_cases.h"

namespace {

using namespace kernels::testing;
using kernels::on_cuda;
using kernels::package;

// How close gradients come: two roundings; and where a row is scaled by its target's probability, that e^(u - lse) is
// known as well as u is, which is rounded to the dtype: to its unit roundoff times the logit.
double gradient_tolerance(at::ScalarType dtype, const Options& o, const Tensor& largest) {
  return 2 * tolerance(dtype) * (o.token_scaling ? 1 + largest.item<double>() : 1);
}

// hidden, weight, bias -> loss and gradients, as the host uses the ops
Tensors linear_forward_backward(const Tensors& in, const Tensor& target, const Tensor& dloss, const Options& o,
                                bool with_bias) {
  const c10::IValue bias = with_bias ? c10::IValue(in[2]) : c10::IValue();
  const auto options = [&](const char* op, auto... first) {
    return package().call(op, first..., kIgnore, o.label_smoothing, o.softcap, o.z_loss, o.reduction, false, 0,
                          class_weight(o, in[1].size(0)), o.token_scaling);
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
    const double allowed = gradient_tolerance(dtype, o, largest);
    expect_close(got[1], want[1], allowed, "dhidden " + what);
    expect_close(got[2], want[2], allowed, "dweight " + what);
    if (with_bias) expect_close(got[3], want[3], allowed, "dbias " + what);
    const c10::IValue bias = with_bias ? c10::IValue(in[2]) : c10::IValue();
    const auto inference =
        package().call("linear_cross_entropy", lay_out(in[0]), lay_out(in[1]), bias, target, kIgnore, o.label_smoothing,
                       o.softcap, o.z_loss, o.reduction, 0, class_weight(o, vocab), o.token_scaling);
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
        return package().call(op, first..., kIgnore, o.label_smoothing, o.softcap, o.z_loss, o.reduction, false, bytes,
                              class_weight(o, vocab), o.token_scaling);
      };
      auto got = call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target);
      const auto back = call("linear_cross_entropy_bwd", dloss, in[0], in[1], c10::IValue(), target, got[1]);
      const std::string what = describe(o, dtype, "rows " + std::to_string(rows) + " bytes " + std::to_string(bytes));
      expect_close(got[0] + largest, want[0] + largest, 2 * tolerance(dtype), "loss " + what);
      // dweight is rounded once a chunk: six of them leave up to as many times the error of one.
      const double allowed = gradient_tolerance(dtype, o, largest);
      expect_close(back[0], want[1], allowed, "dhidden " + what);
      expect_close(back[1], want[2], 3 * allowed, "dweight " + what);
      if (std::string(o.reduction) == "none") continue;
      const auto scaled = [&](const Tensor& t) { return t.to(at::kDouble) * dloss.to(at::kDouble); };
      expect_close(scaled(got[2]), want[1], allowed, "forward's dhidden " + what);
      expect_close(scaled(got[3]), want[2], 3 * allowed, "forward's dweight " + what);
    }
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const Options& o : kOptions) expect({300, 131, 256}, dtype, o);
    expect({700, 1021, 264}, dtype, {});
    expect({700, 1021, 512}, dtype, {});
    expect({512, 61, 512}, dtype, {});
  }
}

TEST(LinearCrossEntropy, PredictsTheWordOfTheHighestLogit) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{9, 131, 24}, {300, 131, 256}, {1, 1, 1}, {0, 7, 8}}) {
      const auto in = random_tensors({{shape[0], shape[2]}, {shape[1], shape[2]}}, dtype);
      const Tensor target = random_target(shape[0], shape[1]), counts = target != kIgnore;
      for (const char* reduction : {"mean", "none"}) {
        for (const int64_t bytes : {0, 1}) {  // one chunk; many, and on a GPU some of their logits transposed
          const auto got = package().call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target, kIgnore, 0.0,
                                          0.0, 0.0, reduction, false, bytes, c10::IValue(), false, true);
          // Of the logits as they were rounded: one that lies below by no more than both were moved may be the highest.
          const Tensor logits = in[0].to(at::kDouble).matmul(in[1].to(at::kDouble).t());
          const Tensor highest = shape[0] == 0 ? counts.to(at::kDouble) : std::get<0>(logits.max(1));
          const Tensor chosen = logits.gather(1, got[5].clamp(0, shape[1] - 1).unsqueeze(1)).squeeze(1);
          const Tensor slack = 2 * tolerance(dtype) * highest.abs() + 1e-5;
          EXPECT_EQ(((highest - chosen) * counts > slack).sum().item<int64_t>(), 0) << c10::toString(dtype);
        }
      }
    }
  }
  const auto in = random_tensors({{3, 4}, {5, 4}}, at::kFloat);
  const Tensor target = random_target(3, 5);
  const auto plain =
      package().call("linear_cross_entropy_fwd", in[0], in[1], c10::IValue(), target, kIgnore, 0.0, 0.0, 0.0, "mean");
  EXPECT_EQ(plain[5].numel(), 0);
}

TEST(LinearCrossEntropy, BackwardIsTheGradientOfForward) {
  for (const Options& o : kOptions) {
    if (o.token_scaling) continue;  // a constant to the gradient, not to the loss
    const auto in = random_tensors({{4, 3}, {6, 3}, {6}}, at::kFloat);
    const Tensor target = random_target(4, 6), dloss = random_dloss(o, 4);
    const auto loss = [&](const Tensors& t) {
      return (package()
                  .call("linear_cross_entropy", t[0], t[1], t[2], target, kIgnore, o.label_smoothing, o.softcap,
                        o.z_loss, o.reduction, 0, class_weight(o, 6), o.token_scaling)[0]
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
    // What torch's product of a chunk takes beside its result: where a CPU has no instructions for bfloat16, copies.
    const int64_t product = peak_bytes([&] { at::matmul(in[0].narrow(0, 0, chunk / vocab / size), in[1].t()); });
    const int64_t copies = std::max<int64_t>(product - chunk, 0);
    const int64_t bound = chunk + rows * dim * 2 * size + weight * size + sums + copies + (int64_t{1} << 20);
    EXPECT_LE(ours, bound) << c10::toString(dtype);
    const int64_t times = on_cuda() ? 2 : 4;
    EXPECT_LE(ours * times, eager) << c10::toString(dtype) << ": one " << times << "th of the eager way";
  }
}

}  // namespace
