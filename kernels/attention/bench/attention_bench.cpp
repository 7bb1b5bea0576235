// Against torch's scaled_dot_product_attention: decode steps, prompts (causal), and the gradients of prompts.
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
  int64_t group() const { return heads / key_heads; }
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

// All of [batch, heads, rows, dim].
Tensor torchs(const Tensor& q, const Tensor& k, const Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, q.size(2) > 1, {}, q.size(1) != k.size(1));
}
// One query row: the heads of a group read the same keys, and may stand in for rows.
Tensor torchs_by_groups(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor rows = q.reshape({q.size(0), k.size(1), q.size(1) / k.size(1), q.size(3)});
  return at::scaled_dot_product_attention(rows, k, v, {}, 0.0, false, {}, false).reshape(q.sizes());
}
Tensor heads_first(const Tensor& t) { return t.transpose(1, 2); }
Tensor wide(const Tensor& t) { return t.to(at::kDouble); }

// What is computed, [batch, rows, heads, dim]: as projections write it.
struct Inputs {
  Tensor q, k, v, dout;
  Inputs(const Shape& s, at::ScalarType dtype) {
    const auto random = [&](int64_t rows, int64_t heads) { return at::randn({s.batch, rows, heads, s.dim}).to(dtype); };
    q = random(s.rows, s.heads), k = random(s.keys, s.key_heads), v = random(s.keys, s.key_heads);
    dout = random(s.rows, s.heads);
  }
  int64_t bytes() const { return (2 * q.numel() + k.numel() + v.numel()) * q.element_size(); }
};

// torch's gradients of q, k and v, again and again from one forward.
class TorchsBackward {
 public:
  TorchsBackward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout) : dout_(heads_first(dout)) {
    for (const Tensor& t : {q, k, v}) leaves_.push_back(t.detach().requires_grad_(true));
    at::AutoGradMode grad(true);
    out_ = torchs(heads_first(leaves_[0]), heads_first(leaves_[1]), heads_first(leaves_[2]));
  }
  std::vector<Tensor> operator()() const {
    c10::InferenceMode off(false);
    at::AutoGradMode grad(true);
    for (const Tensor& t : leaves_) t.mutable_grad().reset();
    out_.backward(dout_, /*retain_graph=*/true);
    return {leaves_[0].grad(), leaves_[1].grad(), leaves_[2].grad()};
  }

 private:
  Tensor dout_, out_;
  std::vector<Tensor> leaves_;
};

void decode(Bench& bench, const Shape& s, at::ScalarType dtype) {
  if (!bench.wants("attention_decode")) return;
  const Inputs x(s, dtype);
  // torch's side has its keys as transformers' cache holds them: each head's together.
  const Tensor q = heads_first(x.q), k = heads_first(x.k).contiguous(), v = heads_first(x.v).contiguous();
  Case c{
      .op = "attention_decode", .shape = s.str(), .dtype = short_name(dtype), .peer = "torch sdpa", .bytes = x.bytes()};
  c.tolerance = dtype == at::kFloat ? 2e-6 : 1.0 / 200;  // one rounding, weights of bfloat16 to 1e-4
  const auto ours = [&] { return call("attention", with_options({x.q, x.k, x.v}, s.dim))[0]; };
  c.ours = [&] { ours(); };
  c.error = [&] { return relative_l2(ours(), heads_first(torchs(wide(q), wide(k), wide(v)))); };
  c.theirs = [&] { torchs(q, k, v); };
  if (s.group() == 4) c.target = 2.5;
  bench.run(c);
  if (s.group() == 1) return;
  c.peer = "torch sdpa, a group's heads as rows", c.target = 0.95;
  c.theirs = [&] { torchs_by_groups(q, k, v); };
  bench.run(c);
}

void prompt(Bench& bench, const Shape& s, at::ScalarType dtype) {
  if (!bench.wants("attention_forward") && !bench.wants("attention_backward")) return;
  const Inputs x(s, dtype);
  const Tensor q = heads_first(x.q), k = heads_first(x.k), v = heads_first(x.v);
  Case c{.op = "attention_forward",
         .shape = s.str(),
         .dtype = short_name(dtype),
         .peer = "torch sdpa",
         .bytes = x.bytes()};
  c.tolerance = dtype == at::kFloat ? 2e-6 : 1.0 / 200;
  const auto ours = [&] { return call("attention", with_options({x.q, x.k, x.v}, s.dim))[0]; };
  c.ours = [&] { ours(); };
  c.theirs = [&] { torchs(q, k, v); };
  c.error = [&] { return relative_l2(ours(), heads_first(torchs(wide(q), wide(k), wide(v)))); };
  if (s.rows >= 2048) c.target = 1.2;
  bench.run(c);

  const auto trained = call("attention_fwd", with_options({x.q, x.k, x.v}, s.dim));
  const auto backward = [&] {
    auto stack = with_options({x.dout, x.q, x.k, x.v, trained[0], trained[1], c10::IValue()}, s.dim);
    stack.emplace_back(true);
    return call("attention_bwd", stack);
  };
  const TorchsBackward theirs(x.q, x.k, x.v, x.dout);
  c.op = "attention_backward", c.bytes *= 2;  // also dout and three gradients
  c.tolerance = dtype == at::kFloat ? 1e-5 : 1.0 / 64;
  c.target = 1.5;
  c.ours = [&] { backward(); };
  c.theirs = [&] { theirs(); };
  c.error = [&] { return relative_l2(backward(), TorchsBackward(wide(x.q), wide(x.k), wide(x.v), wide(x.dout))()); };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // SmolLM2-135M; an 8B model in cache and beyond it, one row and four; every head its own keys
    decode(bench, {1, 9, 3, 64, 1, 512}, dtype);
    decode(bench, {1, 32, 8, 128, 1, 1024}, dtype);
    decode(bench, {1, 32, 8, 128, 1, 8192}, dtype);
    decode(bench, {4, 32, 8, 128, 1, 4096}, dtype);
    decode(bench, {1, 32, 32, 128, 1, 2048}, dtype);
    prompt(bench, {1, 9, 3, 64, 128, 128}, dtype);
    prompt(bench, {2, 32, 8, 64, 512, 512}, dtype);
    prompt(bench, {1, 16, 16, 64, 2048, 2048}, dtype);
    prompt(bench, {1, 16, 4, 128, 2048, 2048}, dtype);
  }
  return bench.finish();
}
