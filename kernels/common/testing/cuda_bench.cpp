// Every GPU kernel at the shapes that count, against torch's own in the same process: cuda_bench [--filter TEXT]
// [--csv FILE --date D --commit C] [--quick]
#include "kernels/common/testing/cuda_bench.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <chrono>
#include <cmath>

#include "kernels/common/testing/package.h"

namespace {

using namespace kernels::bench;
using kernels::Package;

const auto kBf16 = at::device(at::kCUDA).dtype(at::kBFloat16);
constexpr double kBf16Error = 8e-3;
constexpr double kEps = 1e-6;

const Package& package(const std::string& name) {
  static std::vector<std::pair<std::string, Package*>> loaded;
  for (const auto& [known, p] : loaded) {
    if (known == name) return *p;
  }
  loaded.push_back(
      {name, new Package(std::string(HOTSWAP_PACKAGES_DIR) + "/" + name + "/build/" + HOTSWAP_CUDA_VARIANT)});
  return *loaded.back().second;
}

Tensor random(at::IntArrayRef shape, double scale = 1) { return at::randn(shape, kBf16) * scale; }
Tensors randoms(int sets, at::IntArrayRef shape, double scale = 1) {
  Tensors out;
  for (int i = 0; i < sets; ++i) out.push_back(random(shape, scale));
  return out;
}
Tensor wide(const Tensor& t) { return t.to(at::kDouble); }
std::string by(int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b); }

void norms(GpuBench& bench) {
  const Package& p = package("norm");
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

Tensor sigmoid_form(const Tensor& x, const Tensor& u) { return x * at::sigmoid(u); }
Tensor silu_formula(const Tensor& x) { return sigmoid_form(x, x); }
Tensor gelu_formula(const Tensor& x) { return 0.5 * x * (1.0 + at::erf(x * M_SQRT1_2)); }
Tensor gelu_tanh_formula(const Tensor& x) {
  return 0.5 * x * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3.0))));
}
Tensor gelu_quick_formula(const Tensor& x) { return sigmoid_form(x, 1.702 * x); }

// f'(x) by central differences in float64: error h^2 of a third derivative.
Tensor slope(Tensor (*f)(const Tensor&), const Tensor& x) { return (f(x + 1e-4) - f(x - 1e-4)) / 2e-4; }

void activations(GpuBench& bench) {
  const Package& p = package("activation");
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
  const Package& m = package("mlp");
  const Tensors& gate = x;
  const Tensors up = randoms(n, {rows, cols});
  bench.run({.op = "swiglu",
             .shape = by(rows, cols),
             .dtype = "bfloat16",
             .bytes = 3 * one,
             .target_share = 0.97,
             .ours = [&](int i) { return m.call("swiglu", gate[i], up[i]); },
             .theirs = [&](int i) { return Tensors{at::silu(gate[i]) * up[i]}; },
             .peer = "torch; two kernels",
             .reference = [&](int i) { return Tensors{silu_formula(wide(gate[i])) * wide(up[i])}; },
             .tolerance = kBf16Error});
  bench.run({.op = "swiglu_bwd",
             .shape = by(rows, cols),
             .dtype = "bfloat16",
             .bytes = 5 * one,
             .target_share = 0.95,
             .ours = [&](int i) { return m.call("swiglu_bwd", dy[i], gate[i], up[i]); },
             .theirs = nullptr,
             .peer = "",
             .reference =
                 [&](int i) {
                   return Tensors{wide(dy[i]) * wide(up[i]) * slope(silu_formula, wide(gate[i])),
                                  wide(dy[i]) * silu_formula(wide(gate[i]))};
                 },
             .tolerance = kBf16Error});
}

void rotary(GpuBench& bench) {
  const Package& p = package("rotary");
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

int64_t peak_bytes(const std::function<void()>& fn) {
  auto* const allocator = c10::getDeviceAllocator(at::kCUDA);
  allocator->resetPeakStats(0);
  const auto now = [&] { return allocator->getDeviceStats(0).allocated_bytes[0]; };
  const int64_t before = now().current;
  fn();
  return now().peak - before;
}

void losses(GpuBench& bench) {
  const Package& p = package("loss");
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

// What a call costs its caller: the host's clock over many calls, the GPU keeping up.
void calls(GpuBench& bench) {
  if (!bench.wants("call")) return;
  const at::NoGradGuard no_grad;
  const Tensor x = random({1, 2048}), w = random({2048});
  static const auto op =
      package("norm").typed<Tensor(const Tensor&, const Tensor&, double, double, c10::string_view)>("rms_norm");
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

}  // namespace

int main(int argc, char** argv) {
  GpuBench::Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      s.repeats = 3;
      continue;
    }
    std::string* const to = flag == "--csv"      ? &s.csv
                            : flag == "--filter" ? &s.filter
                            : flag == "--date"   ? &s.date
                            : flag == "--commit" ? &s.commit
                                                 : nullptr;
    if (to == nullptr || i + 1 == argc) {
      std::fprintf(stderr, "wanted [--filter TEXT] [--csv FILE --date D --commit C] [--quick]; got %s\n", flag.c_str());
      return 2;
    }
    *to = argv[++i];
  }
  if (!kernels::load_torch_cuda() || !at::globalContext().hasCUDA()) {
    std::fprintf(stderr, "wanted a GPU; got none that torch can use\n");
    return 77;
  }
  at::empty({1}, at::device(at::kCUDA));  // brings the context and the allocator up
  GpuBench bench(s);
  norms(bench);
  if (bench.wants("silu") || bench.wants("gelu") || bench.wants("swiglu")) activations(bench);
  rotary(bench);
  losses(bench);
  calls(bench);
  return bench.finish();
}
