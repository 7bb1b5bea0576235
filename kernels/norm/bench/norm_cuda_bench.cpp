// RMSNorm, AddRMSNorm, LayerNorm on a GPU, against torch's own kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <chrono>

#include "kernels/common/testing/cuda_bench.h"

namespace {

using namespace kernels::bench;

constexpr double kEps = 1e-6;

void norms(GpuBench& bench) {
  const kernels::Package& p = gpu_package();
  const int64_t rows = 16384;
  for (const int64_t cols : {2048, 4096, 8192}) {
    if (!bench.wants("rms_norm") && !bench.wants("layer_norm")) return;
    const int n = bench.sets();
    const Tensors x = randoms(n, {rows, cols}), r = randoms(n, {rows, cols}), dy = randoms(n, {rows, cols}),
                  dh = randoms(n, {rows, cols});
    const Tensor w = random({cols});
    const double one = double(rows) * cols * 2;
    const std::string shape = by(rows, cols);
    const auto normed = [](const Tensor& v) { return v * (v.pow(2).mean(-1, true) + kEps).rsqrt(); };
    const auto gradients = [=](const Tensor& v, const Tensor& g, const Tensor& weight) {
      const Tensor rstd = (v.pow(2).mean(-1, true) + kEps).rsqrt(), unit = v * rstd, scaled = g * weight;
      return Tensors{rstd * (scaled - unit * (scaled * unit).mean(-1, true)), (g * unit).sum(0)};
    };
    bench.run({.op = "rms_norm",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 2 * one,
               .target_share = 0.92,
               .ours = [&](int i) { return p.call("rms_norm", x[i], w, kEps, 0.0, "llama"); },
               .theirs = [&](int i) { return Tensors{std::get<0>(at::_fused_rms_norm(x[i], {cols}, w, kEps))}; },
               .peer = "torch",
               .reference = [&](int i) { return Tensors{normed(wide(x[i])) * wide(w)}; },
               .tolerance = kBf16Error});
    bench.run({.op = "add_rms_norm",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 4 * one,
               .target_share = 0.92,
               .ours = [&](int i) { return p.call("add_rms_norm", x[i], r[i], w, kEps, 0.0, "llama"); },
               .theirs = [&](int i) { return Tensors{std::get<0>(at::_fused_rms_norm(x[i] + r[i], {cols}, w, kEps))}; },
               .peer = "torch; two kernels",
               .reference =
                   [&](int i) {
                     return Tensors{normed(wide(x[i] + r[i])) * wide(w), wide(x[i] + r[i])};
                   },
               .tolerance = kBf16Error});
    Tensors rstd;
    for (int i = 0; i < n; ++i) rstd.push_back(p.call("rms_norm_fwd", x[i], w, kEps, 0.0, "llama")[1]);
    bench.run({.op = "rms_norm_bwd",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 3 * one,
               .target_share = 0.85,
               .ours = [&](int i) { return p.call("rms_norm_bwd", dy[i], x[i], w, rstd[i], 0.0, "llama"); },
               .theirs =
                   [&](int i) {
                     const auto out =
                         at::_fused_rms_norm_backward(dy[i], x[i], {cols}, rstd[i].view({-1, 1}), w, {true, true});
                     return Tensors{std::get<0>(out)};
                   },
               .peer = "torch",
               .reference = [&](int i) { return gradients(wide(x[i]), wide(dy[i]), wide(w)); },
               .tolerance = kBf16Error});
    bench.run({.op = "add_rms_norm_bwd",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 4 * one,
               .target_share = 0.85,
               .ours = [&](int i) { return p.call("add_rms_norm_bwd", dy[i], dh[i], x[i], w, rstd[i], 0.0, "llama"); },
               .theirs = nullptr,
               .peer = "",
               .reference =
                   [&](int i) {
                     Tensors want = gradients(wide(x[i]), wide(dy[i]), wide(w));
                     want[0] = want[0] + wide(dh[i]);
                     return want;
                   },
               .tolerance = kBf16Error});
    if (cols != 4096) continue;
    const Tensor b = random({cols});
    bench.run({.op = "layer_norm",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 2 * one,
               .target_share = 0.92,
               .ours = [&](int i) { return p.call("layer_norm", x[i], w, b, kEps); },
               .theirs = [&](int i) { return Tensors{std::get<0>(at::native_layer_norm(x[i], {cols}, w, b, kEps))}; },
               .peer = "torch",
               .reference =
                   [&](int i) {
                     const Tensor d = wide(x[i]) - wide(x[i]).mean(-1, true);
                     return Tensors{d * (d.pow(2).mean(-1, true) + kEps).rsqrt() * wide(w) + wide(b)};
                   },
               .tolerance = kBf16Error});
    std::vector<Tensors> saved;
    for (int i = 0; i < n; ++i) saved.push_back(p.call("layer_norm_fwd", x[i], w, b, kEps));
    bench.run({.op = "layer_norm_bwd",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 3 * one,
               .target_share = 0.85,
               .ours = [&](int i) { return p.call("layer_norm_bwd", dy[i], x[i], w, saved[i][1], saved[i][2]); },
               .theirs =
                   [&](int i) {
                     const auto out =
                         at::native_layer_norm_backward(dy[i], x[i], {cols}, saved[i][1].view({-1, 1}),
                                                        saved[i][2].view({-1, 1}), w, b, {true, true, true});
                     return Tensors{std::get<0>(out)};
                   },
               .peer = "torch",
               .reference =
                   [&](int i) {
                     const Tensor d = wide(x[i]) - wide(x[i]).mean(-1, true);
                     const Tensor rstd = (d.pow(2).mean(-1, true) + kEps).rsqrt(), unit = d * rstd;
                     const Tensor g = wide(dy[i]) * wide(w);
                     return Tensors{rstd * (g - g.mean(-1, true) - unit * (g * unit).mean(-1, true)),
                                    (wide(dy[i]) * unit).sum(0), wide(dy[i]).sum(0)};
                   },
               .tolerance = kBf16Error});
  }
}

// What a call costs its caller: the host's clock over many calls, the GPU keeping up.
void calls(GpuBench& bench) {
  if (!bench.wants("call")) return;
  const at::NoGradGuard no_grad;
  const Tensor x = random({1, 2048}), w = random({2048});
  static const auto op =
      gpu_package().typed<Tensor(const Tensor&, const Tensor&, double, double, c10::string_view)>("rms_norm");
  const auto time = [](const auto& fn) {
    for (int i = 0; i < 100; ++i) fn();
    cudaDeviceSynchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 2000; ++i) fn();
    cudaDeviceSynchronize();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 2000;
  };
  std::printf("a call from C++, rms_norm 1x2048: ours %.2f us, torch %.2f us\n",
              time([&] { op.call(x, w, kEps, 0.0, "llama"); }), time([&] { at::_fused_rms_norm(x, {2048}, w, kEps); }));
}

void cases(GpuBench& bench) {
  norms(bench);
  calls(bench);
}

}  // namespace

int main(int argc, char** argv) { return gpu_main(argc, argv, cases); }
