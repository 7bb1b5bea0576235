// RoPE as transformers writes it, decode, prompt and DRAM sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

Tensor rotate_half(const Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
}
// transformers' apply_rotary_pos_emb
std::pair<Tensor, Tensor> eager(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin) {
  const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  return {q * c + rotate_half(q) * s, k * c + rotate_half(k) * s};
}

using Rotary = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, bool);
using RotaryInPlace = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, bool);

struct Shape {
  int64_t heads, kv_heads, time, dim;
};

void run(Bench& bench, const Shape& s, at::ScalarType dtype) {
  // as the projections leave them: [batch, time, heads, dim], transposed
  const auto heads = [&](int64_t n) { return at::randn({1, s.time, n, s.dim}, dtype).transpose(1, 2); };
  const Tensor q = heads(s.heads), k = heads(s.kv_heads), dq = heads(s.heads), dk = heads(s.kv_heads);
  // Both halves turn by the same angle: what is turned in place again and again keeps its length. (With other angles it
  // shrinks to denormal numbers, and arithmetic on them is ten times slower.)
  const Tensor angle = at::randn({1, s.time, s.dim / 2}).repeat({1, 1, 2});
  const Tensor cos = angle.cos().to(dtype), sin = angle.sin().to(dtype);
  const int64_t bytes = (q.numel() + k.numel()) * q.element_size(), dim = s.dim;
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  Case c{.shape = std::to_string(s.heads) + "+" + std::to_string(s.kv_heads) + "x" + std::to_string(s.time) + "x" +
                  std::to_string(dim),
         .dtype = short_name(dtype),
         .peer = "transformers eager"};
  c.tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;

  static const auto rotary = package().typed<Rotary>("rotary");
  static const auto rotary_bwd = package().typed<Rotary>("rotary_bwd");
  static const auto rotary_in_place = package().typed<RotaryInPlace>("rotary_");
  c.op = "rotary", c.target = 3, c.bytes = 2 * bytes;
  c.ours = [&] { rotary.call(q, k, cos, sin, dim, false); };
  c.theirs = [&] { eager(q, k, cos, sin); };
  c.error = [&] {
    return relative_l2(std::get<0>(rotary.call(q, k, cos, sin, dim, false)),
                       eager(wide(q), wide(k), wide(cos), wide(sin)).first);
  };
  bench.run(c);

  const Tensor q2 = q.clone(), k2 = k.clone();
  c.op = "rotary_", c.ours = [&] { rotary_in_place.call(q2, k2, cos, sin, dim, false); };
  bench.run(c);

  const Tensor qg = q.detach().requires_grad_(true), kg = k.detach().requires_grad_(true);
  c.op = "rotary_fwd_bwd", c.target = 0.95, c.bytes = 4 * bytes;
  c.ours = [&] {
    rotary.call(q, k, cos, sin, dim, false);
    rotary_bwd.call(dq, dk, cos, sin, dim, false);
  };
  const auto backward = [&](const Tensor& x, const Tensor& y, const Tensor& gx, const Tensor& gy, const Tensor& co,
                            const Tensor& si) {
    c10::InferenceMode off(false);
    at::AutoGradMode grad(true);
    const auto [a, b] = eager(x, y, co, si);
    ((a * gx).sum() + (b * gy).sum()).backward();
  };
  c.theirs = [&] {
    c10::InferenceMode off(false);
    at::AutoGradMode grad(true);
    qg.mutable_grad().reset(), kg.mutable_grad().reset();
    const auto [a, b] = eager(qg, kg, cos, sin);
    a.backward(dq);
    b.backward(dk);
  };
  c.error = [&] {
    const Tensor x = wide(q).requires_grad_(true), y = wide(k).requires_grad_(true);
    backward(x, y, wide(dq), wide(dk), wide(cos), wide(sin));
    return relative_l2(std::get<0>(rotary_bwd.call(dq, dk, cos, sin, dim, false)), x.grad());
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // one token and a prompt of SmolLM2-135M; a prompt of an 8B model; DRAM
    for (const Shape& s : {Shape{9, 3, 1, 64}, {9, 3, 512, 64}, {32, 8, 512, 128}, {32, 8, 8192, 128}})
      run(bench, s, dtype);
  }
  return bench.finish();
}
