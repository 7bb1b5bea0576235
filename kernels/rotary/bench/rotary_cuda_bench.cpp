// RoPE on a GPU, against the lines that transformers executes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <cmath>

#include "kernels/common/testing/cuda_bench.h"

namespace {

using namespace kernels::bench;

void rotary(GpuBench& bench) {
  const kernels::Package& p = gpu_package();
  const int64_t batch = 4, time = 4096, heads = 32, kv = 8, dim = 128;
  const int n = bench.sets();
  const auto by_time = [&](int64_t h) {
    Tensors out = randoms(n, {batch, time, h, dim});
    for (Tensor& t : out) t = t.transpose(1, 2);
    return out;
  };
  const Tensors q = by_time(heads), k = by_time(kv);
  const Tensor angle =
      at::arange(time, at::device(at::kCUDA).dtype(at::kFloat)).unsqueeze(1) *
      (at::arange(dim / 2, at::device(at::kCUDA).dtype(at::kFloat)) * (-2.0 / dim * std::log(5e5))).exp();
  const Tensor both = at::cat({angle, angle}, -1).unsqueeze(0);
  const Tensor cos = both.cos().to(at::kBFloat16), sin = both.sin().to(at::kBFloat16);
  const double bytes = 2.0 * batch * time * (heads + kv) * dim * 2;
  const auto half = [&](const Tensor& x) {
    return at::cat({-x.narrow(-1, dim / 2, dim / 2), x.narrow(-1, 0, dim / 2)}, -1);
  };
  const auto formula = [&](const Tensor& x) { return x * wide(cos).unsqueeze(1) + half(x) * wide(sin).unsqueeze(1); };
  const auto turned = [&](const Tensor& x) { return x * cos.unsqueeze(1) + half(x) * sin.unsqueeze(1); };
  const std::string shape = "4x4096x32/8x128";
  bench.run({.op = "rotary",
             .shape = shape,
             .dtype = "bfloat16",
             .bytes = bytes,
             .target_share = 0,
             .ours = [&](int i) { return p.call("rotary", q[i], k[i], cos, sin, dim, false); },
             .theirs =
                 [&](int i) {
                   return Tensors{turned(q[i]), turned(k[i])};
                 },
             .peer = "transformers eager",
             .reference =
                 [&](int i) {
                   return Tensors{formula(wide(q[i])), formula(wide(k[i]))};
                 },
             .tolerance = kBf16Error,
             .target_us = 85});
  bench.run({.op = "rotary_bwd",
             .shape = shape,
             .dtype = "bfloat16",
             .bytes = bytes,
             .target_share = 0,
             .ours = [&](int i) { return p.call("rotary_bwd", q[i], k[i], cos, sin, dim, false); },
             .theirs = nullptr,
             .peer = "",
             .reference = nullptr,
             .tolerance = 1,
             .target_us = 85});
  Tensors q2, k2;
  for (int i = 0; i < n; ++i) q2.push_back(q[i].clone()), k2.push_back(k[i].clone());
  bench.run({.op = "rotary_",
             .shape = shape,
             .dtype = "bfloat16",
             .bytes = bytes,
             .target_share = 0,
             .ours =
                 [&](int i) {
                   p.call("rotary_", q2[i], k2[i], cos, sin, dim, false);
                   return Tensors{};
                 },
             .theirs = nullptr,
             .peer = "",
             .reference = nullptr,
             .tolerance = 1,
             .target_us = 83});
}

}  // namespace

int main(int argc, char** argv) { return gpu_main(argc, argv, rotary); }
