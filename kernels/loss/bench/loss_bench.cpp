// Cross-entropy as transformers writes it (logits.float(), then torch's), and with the head's GEMM in front of it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

constexpr int64_t kIgnore = -100;
// An op, with the options that models use.
template <class... Tensors>
std::vector<Tensor> call(const char* op, const Tensors&... tensors) {
  return package().call(op, tensors..., kIgnore, 0.0, 0.0, 0.0, "mean");
}

Tensor eager(const Tensor& logits, const Tensor& target) {
  const Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide, target);
}

// The eager way with its gradients, for leaves that ask for them.
template <class Loss>
void through_autograd(const std::vector<Tensor>& leaves, const Loss& loss) {
  c10::InferenceMode off(false);
  at::AutoGradMode grad(true);
  for (const Tensor& t : leaves) t.mutable_grad().reset();
  loss().backward();
}

void run(Bench& bench, int64_t rows, int64_t vocab, at::ScalarType dtype) {
  const Tensor logits = at::randn({rows, vocab}, dtype), target = at::randint(vocab, {rows}, at::kLong);
  const Tensor one = at::ones({}, at::kFloat);
  const int64_t bytes = rows * vocab * logits.element_size();
  const double tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  Case c{.shape = std::to_string(rows) + "x" + std::to_string(vocab),
         .dtype = short_name(dtype),
         .peer = "transformers eager"};
  c.tolerance = tolerance;

  c.op = "cross_entropy", c.target = 1.5, c.bytes = bytes;
  c.ours = [&] { call("cross_entropy", logits, target); };
  c.theirs = [&] { eager(logits, target); };
  c.error = [&] { return relative_l2(call("cross_entropy", logits, target)[0], eager(wide(logits), target)); };
  bench.run(c);

  const auto ours = [&] {
    const Tensor lse = call("cross_entropy_fwd", logits, target)[1];
    return call("cross_entropy_bwd", one, logits, target, lse)[0];
  };
  const Tensor leaf = logits.detach().requires_grad_(true);
  c.op = "cross_entropy_fwd_bwd", c.target = 0.95, c.bytes = 3 * bytes;
  c.ours = [&] { ours(); };
  c.theirs = [&] { through_autograd({leaf}, [&] { return eager(leaf, target); }); };
  c.error = [&] {
    const Tensor exact = wide(logits).requires_grad_(true);
    through_autograd({exact}, [&] { return eager(exact, target); });
    return relative_l2(ours(), exact.grad());
  };
  bench.run(c);
}

void run_linear(Bench& bench, int64_t rows, int64_t vocab, int64_t dim, at::ScalarType dtype) {
  if (!bench.wants("linear_cross_entropy_fwd_bwd")) return;
  const Tensor hidden = at::randn({rows, dim}, dtype), weight = at::randn({vocab, dim}, dtype) * (1 / std::sqrt(dim));
  const Tensor target = at::randint(vocab, {rows}, at::kLong);
  const int64_t bytes = (hidden.numel() + weight.numel()) * 2 * hidden.element_size();
  Case c{.shape = std::to_string(rows) + "x" + std::to_string(vocab) + "x" + std::to_string(dim),
         .dtype = short_name(dtype),
         .peer = "transformers eager"};
  c.tolerance = dtype == at::kFloat ? 1e-5 : 2.0 / 256;

  const c10::IValue no_bias;
  const auto exact_loss = [&] { return eager(hidden.to(at::kFloat).matmul(weight.to(at::kFloat).t()), target); };
  c.op = "linear_cross_entropy", c.target = 1.3, c.bytes = bytes / 2;
  c.ours = [&] { call("linear_cross_entropy", hidden, weight, no_bias, target); };
  c.theirs = [&] { eager(hidden.matmul(weight.t()), target); };
  c.error = [&] { return relative_l2(call("linear_cross_entropy", hidden, weight, no_bias, target)[0], exact_loss()); };
  bench.run(c);

  const auto ours = [&] { return call("linear_cross_entropy_fwd", hidden, weight, no_bias, target); };
  const Tensor h = hidden.detach().requires_grad_(true), w = weight.detach().requires_grad_(true);
  c.op = "linear_cross_entropy_fwd_bwd", c.bytes = bytes;
  c.ours = [&] { ours(); };
  c.theirs = [&] { through_autograd({h, w}, [&] { return eager(h.matmul(w.t()), target); }); };
  c.error = [&] {
    const Tensor h2 = hidden.to(at::kFloat).requires_grad_(true), w2 = weight.to(at::kFloat).requires_grad_(true);
    through_autograd({h2, w2}, [&] { return eager(h2.matmul(w2.t()), target); });
    const auto got = ours();
    return relative_l2({got[2], got[3]}, {h2.grad(), w2.grad()});
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // a small vocabulary in cache; SmolLM2's for one short row and for a batch in DRAM
    for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{64, 4096}, {8, 49152}, {512, 49152}})
      run(bench, rows, vocab, dtype);
    run_linear(bench, 512, 49152, 576, dtype);
  }
  return bench.finish();
}
