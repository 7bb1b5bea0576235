// act(gate) * up on a GPU, against torch's two kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "kernels/common/testing/cuda_bench.h"

namespace {

using namespace kernels::bench;

Tensor silu_formula(const Tensor& x) { return x * at::sigmoid(x); }

void gated(GpuBench& bench) {
  const kernels::Package& p = gpu_package();
  const int64_t rows = 16384, cols = 8192;
  const int n = bench.sets();
  const double one = double(rows) * cols * 2;
  const Tensors gate = randoms(n, {rows, cols}, 2), up = randoms(n, {rows, cols}), dy = randoms(n, {rows, cols});
  bench.run({.op = "swiglu",
             .shape = by(rows, cols),
             .dtype = "bfloat16",
             .bytes = 3 * one,
             .target_share = 0.97,
             .ours = [&](int i) { return p.call("swiglu", gate[i], up[i]); },
             .theirs = [&](int i) { return Tensors{at::silu(gate[i]) * up[i]}; },
             .peer = "torch; two kernels",
             .reference = [&](int i) { return Tensors{silu_formula(wide(gate[i])) * wide(up[i])}; },
             .tolerance = kBf16Error});
  bench.run({.op = "swiglu_bwd",
             .shape = by(rows, cols),
             .dtype = "bfloat16",
             .bytes = 5 * one,
             .target_share = 0.95,
             .ours = [&](int i) { return p.call("swiglu_bwd", dy[i], gate[i], up[i]); },
             .theirs = nullptr,
             .peer = "",
             .reference =
                 [&](int i) {
                   return Tensors{wide(dy[i]) * wide(up[i]) * slope(silu_formula, wide(gate[i])),
                                  wide(dy[i]) * silu_formula(wide(gate[i]))};
                 },
             .tolerance = kBf16Error});
}

}  // namespace

int main(int argc, char** argv) { return gpu_main(argc, argv, gated); }
