// Cross-entropy on a GPU, of logits and with the head's GEMM in front of it, and what memory that takes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/softmax.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "kernels/common/testing/cuda_bench.h"

namespace {

using namespace kernels::bench;

int64_t peak_bytes(const std::function<void()>& fn) {
  auto* const allocator = c10::getDeviceAllocator(at::kCUDA);
  allocator->resetPeakStats(0);
  const auto now = [&] { return allocator->getDeviceStats(0).allocated_bytes[0]; };
  const int64_t before = now().current;
  fn();
  return now().peak - before;
}

void losses(GpuBench& bench) {
  const kernels::Package& p = gpu_package();
  const int64_t vocab = 128256, dim = 4096;
  const auto call = [&](const char* op, auto... first) {
    return p.call(op, first..., int64_t{-100}, 0.0, 0.0, 0.0, "mean");
  };
  {
    const int64_t rows = 8192;
    const double one = double(rows) * vocab * 2;
    const Tensor target = at::randint(vocab, {rows}, at::device(at::kCUDA).dtype(at::kLong));
    const Tensor dloss = at::ones({}, at::device(at::kCUDA));
    Tensor z = random({rows, vocab}, 3);
    const Tensor lse = call("cross_entropy_fwd", z, target)[1];
    const std::string shape = by(rows, vocab);
    const auto rows_of = [&](const Tensor& t) { return t.narrow(0, 4000, 64); };
    const auto loss_of = [&](int) {
      return Tensors{at::cross_entropy_loss(z.to(at::kFloat), target, {}, at::Reduction::Mean, -100)};
    };
    bench.run({.op = "cross_entropy_fwd",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = one,
               .target_share = 0.9,
               .ours = [&](int) { return call("cross_entropy_fwd", z, target); },
               .theirs = loss_of,
               .peer = "torch",
               .reference = loss_of,
               .tolerance = 1e-4});
    const auto gradient = [&](int) {
      const Tensor some = rows_of(z).to(at::kDouble);
      return Tensors{(at::softmax(some, -1) - at::one_hot(rows_of(target), vocab).to(at::kDouble)) / double(rows)};
    };
    bench.run({.op = "cross_entropy_bwd",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 2 * one,
               .target_share = 0.9,
               .ours = [&](int) { return Tensors{rows_of(call("cross_entropy_bwd", dloss, z, target, lse)[0])}; },
               .theirs = nullptr,
               .peer = "",
               .reference = gradient,
               .tolerance = kBf16Error});
    const Tensors want = gradient(0);
    // After its first call the logits are small gradients: the work is the same, the numbers are not.
    bool checked = false;
    bench.run({.op = "cross_entropy_fwd_",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 2 * one,
               .target_share = 0.8,
               .ours =
                   [&](int) {
                     call("cross_entropy_fwd_", z, target);
                     return Tensors{checked ? z : rows_of(z)};
                   },
               .theirs = nullptr,
               .peer = "loss and gradient",
               .reference =
                   [&](int) {
                     checked = true;
                     return want;
                   },
               .tolerance = kBf16Error,
               .target_us = 1300});
  }
  for (const int64_t rows : {8192, 32768}) {
    if (!bench.wants("linear_cross_entropy")) return;
    const Tensor h = random({rows, dim}), w = random({vocab, dim}, 1.0 / 64);
    const Tensor target = at::randint(vocab, {rows}, at::device(at::kCUDA).dtype(at::kLong));
    const auto ours = [&](int) { return call("linear_cross_entropy_fwd", h, w, c10::IValue(), target); };
    int64_t peak = 0, outputs = 0;
    peak = peak_bytes([&] {
      for (const Tensor& t : ours(0)) outputs += t.numel() * t.element_size();
    });
    const auto gemms = [&](int) {  // the floor: three GEMMs of the same sizes, a fourth of the rows at a time
      const int64_t part = 4096;
      Tensor last;
      for (int64_t first = 0; first < rows; first += part) {
        const Tensor some = h.narrow(0, first, part), z = at::mm(some, w.t());
        last = at::mm(z, w);
        last = at::mm(z.t(), some);
      }
      return Tensors{};
    };
    const auto few = [&](int) {
      const Tensor some = h.narrow(0, rows / 2, 64);
      const Tensor z = at::mm(some.to(at::kFloat), w.t().to(at::kFloat));
      const Tensor hot = at::one_hot(target.narrow(0, rows / 2, 64), vocab).to(at::kFloat);
      return Tensors{at::mm((at::softmax(z, -1) - hot) / double(rows), w.to(at::kFloat))};
    };
    bool checked = false;
    char note[96];
    std::snprintf(note, sizeof note, "peak %.2f GB over inputs and outputs", (peak - outputs) / 1e9);
    bench.run({.op = "linear_cross_entropy_fwd",
               .shape = by(rows, dim) + "x" + std::to_string(vocab),
               .dtype = "bfloat16",
               .bytes = 0,
               .target_share = 0,
               .ours =
                   [&](int i) {
                     Tensors out = ours(i);
                     return checked ? out : Tensors{out[2].narrow(0, rows / 2, 64)};
                   },
               .theirs = gemms,
               .peer = "the three GEMMs alone",
               .reference =
                   [&](int i) {
                     checked = true;
                     return few(i);
                   },
               .tolerance = 2e-2,
               .target_us = rows == 8192 ? 42000.0 : 165000.0,
               .note = note});
  }
}

}  // namespace

int main(int argc, char** argv) { return gpu_main(argc, argv, losses); }
