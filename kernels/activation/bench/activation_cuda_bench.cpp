// Activations on a GPU, against torch's own kernels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>

#include <cmath>

#include "kernels/common/testing/cuda_bench.h"

namespace {

using namespace kernels::bench;

Tensor sigmoid_form(const Tensor& x, const Tensor& u) { return x * at::sigmoid(u); }
Tensor silu_formula(const Tensor& x) { return sigmoid_form(x, x); }
Tensor gelu_formula(const Tensor& x) { return 0.5 * x * (1.0 + at::erf(x * M_SQRT1_2)); }
Tensor gelu_tanh_formula(const Tensor& x) {
  return 0.5 * x * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3.0))));
}
Tensor gelu_quick_formula(const Tensor& x) { return sigmoid_form(x, 1.702 * x); }

void activations(GpuBench& bench) {
  if (!bench.wants("silu") && !bench.wants("gelu")) return;
  const kernels::Package& p = gpu_package();
  const int64_t rows = 16384, cols = 8192;
  const int n = bench.sets();
  const double one = double(rows) * cols * 2;
  struct Row {
    const char* name;
    Tensor (*formula)(const Tensor&);
    std::function<Tensor(const Tensor&)> torch;
    std::function<Tensor(const Tensor&, const Tensor&)> torch_backward;
  };
  const std::vector<Row> all = {{"silu", silu_formula, [](const Tensor& x) { return at::silu(x); },
                                 [](const Tensor& g, const Tensor& x) { return at::silu_backward(g, x); }},
                                {"gelu", gelu_formula, [](const Tensor& x) { return at::gelu(x); },
                                 [](const Tensor& g, const Tensor& x) { return at::gelu_backward(g, x); }},
                                {"gelu_tanh", gelu_tanh_formula, [](const Tensor& x) { return at::gelu(x, "tanh"); },
                                 [](const Tensor& g, const Tensor& x) { return at::gelu_backward(g, x, "tanh"); }},
                                {"gelu_new", gelu_tanh_formula, nullptr, nullptr},
                                {"gelu_fast", gelu_tanh_formula, nullptr, nullptr},
                                {"gelu_quick", gelu_quick_formula, nullptr, nullptr}};
  const Tensors x = randoms(n, {rows, cols}, 2), dy = randoms(n, {rows, cols});
  for (const Row& row : all) {
    const std::string name = row.name;
    const auto peer = [&](auto fn) { return fn ? "torch" : ""; };
    bench.run(
        {.op = name,
         .shape = by(rows, cols),
         .dtype = "bfloat16",
         .bytes = 2 * one,
         .target_share = 0.95,
         .ours = [&](int i) { return p.call(name, x[i]); },
         .theirs = row.torch ? std::function<Tensors(int)>([&](int i) { return Tensors{row.torch(x[i])}; }) : nullptr,
         .peer = peer(row.torch),
         .reference = [&](int i) { return Tensors{row.formula(wide(x[i]))}; },
         .tolerance = kBf16Error});
    bench.run({.op = name + "_bwd",
               .shape = by(rows, cols),
               .dtype = "bfloat16",
               .bytes = 3 * one,
               .target_share = 0.95,
               .ours = [&](int i) { return p.call(name + "_bwd", dy[i], x[i]); },
               .theirs = row.torch_backward ? std::function<Tensors(int)>(
                                                  [&](int i) { return Tensors{row.torch_backward(dy[i], x[i])}; })
                                            : nullptr,
               .peer = peer(row.torch_backward),
               .reference = [&](int i) { return Tensors{wide(dy[i]) * slope(row.formula, wide(x[i]))}; },
               .tolerance = kBf16Error});
  }
  // y [rows, cols] of x [rows, 2 cols]
  const Tensors xx = randoms(n, {rows, 2 * cols}, 2);
  for (const auto& [name, formula] : std::vector<std::pair<std::string, Tensor (*)(const Tensor&)>>{
           {"silu_and_mul", silu_formula}, {"gelu_and_mul", gelu_formula}, {"gelu_tanh_and_mul", gelu_tanh_formula}}) {
    const auto f = formula;
    const auto op = name;
    const auto gate = [&](int i) { return wide(xx[i].narrow(1, 0, cols)); };
    const auto up = [&](int i) { return wide(xx[i].narrow(1, cols, cols)); };
    bench.run(
        {.op = op,
         .shape = by(rows, cols),
         .dtype = "bfloat16",
         .bytes = 3 * one,
         .target_share = 0.97,
         .ours = [&](int i) { return p.call(op, xx[i]); },
         .theirs = [&](int i) { return Tensors{at::silu(xx[i].narrow(1, 0, cols)) * xx[i].narrow(1, cols, cols)}; },
         .peer = "torch; two kernels; silu",
         .reference = [&](int i) { return Tensors{f(gate(i)) * up(i)}; },
         .tolerance = kBf16Error});
    bench.run({.op = op + "_bwd",
               .shape = by(rows, cols),
               .dtype = "bfloat16",
               .bytes = 5 * one,
               .target_share = 0.95,
               .ours = [&](int i) { return p.call(op + "_bwd", dy[i], xx[i]); },
               .theirs = nullptr,
               .peer = "",
               .reference =
                   [&](int i) {
                     const Tensor g = wide(dy[i]);
                     return Tensors{at::cat({g * up(i) * slope(f, gate(i)), g * f(gate(i))}, -1)};
                   },
               .tolerance = kBf16Error});
  }
}

}  // namespace

int main(int argc, char** argv) { return gpu_main(argc, argv, activations); }
