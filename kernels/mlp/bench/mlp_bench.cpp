// act(gate) * up as transformers writes it, in cache and in DRAM sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

using Forward = Tensor(const Tensor&, const Tensor&);
using Backward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&);

Tensor eager(const std::string& op, const Tensor& gate, const Tensor& up) {
  return (op == "swiglu" ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

void run(Bench& bench, const std::string& op, int64_t rows, int64_t cols, at::ScalarType dtype) {
  const Tensor packed = at::randn({rows, 2 * cols}, dtype), dy = at::randn({rows, cols}, dtype);
  const Tensor gate = at::randn({rows, cols}, dtype), up = at::randn({rows, cols}, dtype);
  const int64_t bytes = rows * cols * gate.element_size();
  const auto forward = package().typed<Forward>(op);
  const auto backward = package().typed<Backward>(op + "_bwd");
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  Case c{.shape = std::to_string(rows) + "x" + std::to_string(cols),
         .dtype = short_name(dtype),
         .peer = "transformers eager"};
  c.tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;

  c.op = op, c.target = op == "swiglu" ? 2.5 : 0.95, c.bytes = 3 * bytes;
  c.ours = [&] { forward.call(gate, up); };
  c.theirs = [&] { eager(op, gate, up); };
  c.error = [&] { return relative_l2(forward.call(gate, up), eager(op, wide(gate), wide(up))); };
  bench.run(c);

  const Tensor left = packed.narrow(-1, 0, cols), right = packed.narrow(-1, cols, cols);
  c.op = op + "_packed";
  c.ours = [&] { forward.call(left, right); };
  c.theirs = [&] { eager(op, left, right); };
  c.error = [&] { return relative_l2(forward.call(left, right), eager(op, wide(left), wide(right))); };
  bench.run(c);

  const Tensor gg = gate.detach().requires_grad_(true), ug = up.detach().requires_grad_(true);
  c.op = op + "_fwd_bwd", c.target = 0.95, c.bytes = 8 * bytes;
  c.ours = [&] {
    forward.call(gate, up);
    backward.call(dy, gate, up);
  };
  const auto through_autograd = [&](const Tensor& g, const Tensor& u, const Tensor& d) {
    c10::InferenceMode off(false);
    at::AutoGradMode grad(true);
    g.mutable_grad().reset(), u.mutable_grad().reset();
    eager(op, g, u).backward(d);
  };
  c.theirs = [&] { through_autograd(gg, ug, dy); };
  c.error = [&] {
    const Tensor g = wide(gate).requires_grad_(true), u = wide(up).requires_grad_(true);
    through_autograd(g, u, wide(dy));
    return relative_l2(std::get<0>(backward.call(dy, gate, up)), g.grad());
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const std::string op : {"swiglu", "geglu"}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      // one token and a prompt of SmolLM2-135M; a prompt of an 8B model; DRAM
      for (const auto& [rows, cols] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 1536}, {256, 1536}, {64, 14336}, {4096, 4096}})
        run(bench, op, rows, cols, dtype);
    }
  }
  return bench.finish();
}
