// Against torch's scaled_dot_product_attention: decode steps, prompts, and their gradients.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

struct Shape {
  int64_t batch, heads, key_heads, dim, rows, keys;
  std::string str() const {
    return std::to_string(batch) + "x" + std::to_string(rows) + " of " + std::to_string(keys) + ", " +
           std::to_string(heads) + "/" + std::to_string(key_heads) + "x" + std::to_string(dim);
  }
  bool gqa() const { return heads != key_heads; }
};

std::vector<c10::IValue> with_options(std::vector<c10::IValue> stack, int64_t dim) {
  for (const auto& option : {c10::IValue(), c10::IValue(), c10::IValue(1 / std::sqrt(double(dim))), c10::IValue(true),
                             c10::IValue(-1), c10::IValue(-1), c10::IValue(0), c10::IValue(0.0)})
    stack.push_back(option);
  return stack;
}
std::vector<Tensor> call(const std::string& op, std::vector<c10::IValue> stack) {
  package().handle(op).callBoxed(stack);
  std::vector<Tensor> out;
  for (auto& value : stack) out.push_back(value.toTensor());
  return out;
}

Tensor torchs(const Tensor& q, const Tensor& k, const Tensor& v, bool gqa) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0.0,
                                          q.size(1) > 1, {}, gqa)
      .transpose(1, 2);
}

void run(Bench& bench, const Shape& s, at::ScalarType dtype) {
  const auto random = [&](int64_t rows, int64_t heads) { return at::randn({s.batch, rows, heads, s.dim}).to(dtype); };
  const Tensor q = random(s.rows, s.heads), k = random(s.keys, s.key_heads), v = random(s.keys, s.key_heads);
  const Tensor dout = random(s.rows, s.heads);
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  Case c{.op = s.rows == 1 ? "decode" : "forward",
         .shape = s.str(),
         .dtype = short_name(dtype),
         .peer = "torch sdpa",
         .bytes = (2 * q.numel() + k.numel() + v.numel()) * q.element_size()};
  c.tolerance = dtype == at::kFloat ? 2e-6 : 1.0 / 200;  // one rounding, weights of bfloat16 to 1e-4
  c.ours = [&] { call("attention", with_options({q, k, v}, s.dim)); };
  c.theirs = [&] { torchs(q, k, v, s.gqa()); };
  c.error = [&] {
    return relative_l2(call("attention", with_options({q, k, v}, s.dim))[0],
                       torchs(wide(q), wide(k), wide(v), s.gqa()));
  };
  bench.run(c);
  if (s.rows == 1) return;

  const auto trained = call("attention_fwd", with_options({q, k, v}, s.dim));
  const auto backward = [&] {
    auto stack = with_options({dout, q, k, v, trained[0], trained[1], c10::IValue()}, s.dim);
    stack.emplace_back(true);
    return call("attention_bwd", stack);
  };
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(true); };
  const auto through_autograd = [&](const Tensor& a, const Tensor& b, const Tensor& d, const Tensor& g) {
    c10::InferenceMode off(false);
    at::AutoGradMode grad(true);
    for (const Tensor* t : {&a, &b, &d}) t->mutable_grad().reset();
    torchs(a, b, d, s.gqa()).backward(g);
  };
  const Tensor ql = leaf(q), kl = leaf(k), vl = leaf(v);
  c.op = "fwd_bwd", c.bytes *= 3;
  c.tolerance = dtype == at::kFloat ? 1e-5 : 1.0 / 64;
  c.ours = [&] {
    call("attention_fwd", with_options({q, k, v}, s.dim));
    backward();
  };
  c.theirs = [&] { through_autograd(ql, kl, vl, dout); };
  c.error = [&] {
    const Tensor a = leaf(wide(q)), b = leaf(wide(k)), d = leaf(wide(v));
    through_autograd(a, b, d, wide(dout));
    return relative_l2(backward()[1], b.grad());
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // decode: SmolLM2-135M; an 8B model in cache and beyond it, one row and four; every head its own keys
    run(bench, {1, 9, 3, 64, 1, 512}, dtype);
    run(bench, {1, 32, 8, 128, 1, 1024}, dtype);
    run(bench, {1, 32, 8, 128, 1, 8192}, dtype);
    run(bench, {4, 32, 8, 128, 1, 4096}, dtype);
    run(bench, {1, 32, 32, 128, 1, 2048}, dtype);
    // prompts
    run(bench, {1, 9, 3, 64, 128, 128}, dtype);
    run(bench, {2, 32, 8, 64, 512, 512}, dtype);
    run(bench, {1, 16, 16, 64, 2048, 2048}, dtype);
    run(bench, {1, 16, 4, 128, 2048, 2048}, dtype);
  }
  return bench.finish();
}
