// Activations as torch and transformers write them, in cache and in DRAM sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>

#include <cmath>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

Tensor gelu_tanh(const Tensor& x) { return at::gelu(x, "tanh"); }
Tensor gelu(const Tensor& x) { return at::gelu(x); }
Tensor gelu_new(const Tensor& x) {  // transformers' NewGELUActivation
  return 0.5 * x * (1.0 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3.0))));
}
Tensor gelu_fast(const Tensor& x) { return 0.5 * x * (1.0 + at::tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))); }
Tensor gelu_quick(const Tensor& x) { return x * at::sigmoid(1.702 * x); }

using Unary = Tensor(const Tensor&);
using Binary = Tensor(const Tensor&, const Tensor&);

struct Act {
  const char *name, *peer;
  Tensor (*eager)(const Tensor&);
  Tensor (*eager_backward)(const Tensor& dy, const Tensor& x) = nullptr;
  bool and_mul = false;
  double target = 3;  // of a forward: so many times as fast as its peer
};
const Act kActs[] = {
    {"silu", "torch silu", at::silu, at::silu_backward, false, 0.95},
    {"gelu", "torch gelu", gelu, [](const Tensor& dy, const Tensor& x) { return at::gelu_backward(dy, x); }},
    {"gelu_tanh", "torch gelu tanh", gelu_tanh,
     [](const Tensor& dy, const Tensor& x) { return at::gelu_backward(dy, x, "tanh"); }},
    {"gelu_new", "transformers eager", gelu_new},
    {"gelu_fast", "transformers eager", gelu_fast},
    {"gelu_quick", "transformers eager", gelu_quick},
    {"silu_and_mul", "torch silu and mul", at::silu, nullptr, true, 2.5},
    {"gelu_and_mul", "torch gelu and mul", gelu, nullptr, true, 0.95},
    {"gelu_tanh_and_mul", "torch gelu and mul", gelu_tanh, nullptr, true, 0.95},
};

Tensor eager(const Act& act, const Tensor& x) {
  if (!act.and_mul) return act.eager(x);
  const int64_t half = x.size(-1) / 2;
  return act.eager(x.narrow(-1, 0, half)) * x.narrow(-1, half, half);
}

void run(Bench& bench, const Act& act, int64_t rows, int64_t cols, at::ScalarType dtype) {
  const std::string name = act.name;
  const Tensor x = at::randn({rows, act.and_mul ? 2 * cols : cols}, dtype), dy = at::randn({rows, cols}, dtype);
  const int64_t bytes = rows * cols * x.element_size();
  Case c;
  c.op = name;
  c.shape = std::to_string(rows) + "x" + std::to_string(cols);
  c.dtype = short_name(dtype);
  c.tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;

  const auto forward = package().typed<Unary>(name);
  c.peer = act.peer, c.target = act.target;
  c.bytes = (act.and_mul ? 3 : 2) * bytes;
  c.ours = [&] { forward.call(x); };
  c.theirs = [&] { eager(act, x); };
  c.error = [&] { return relative_l2(forward.call(x), eager(act, x.to(at::kDouble))); };
  bench.run(c);

  const auto backward = package().typed<Binary>(name + "_bwd");
  const Tensor leaf = x.clone().requires_grad_(true);
  c.op = name + "_bwd", c.target = 0.95;
  c.bytes = (act.and_mul ? 5 : 3) * bytes;
  c.ours = [&] { backward.call(dy, x); };
  c.error = [&] {
    at::AutoGradMode grad(true);
    const Tensor wide = x.to(at::kDouble).requires_grad_(true);
    eager(act, wide).backward(dy.to(at::kDouble));
    return relative_l2(backward.call(dy, x), wide.grad());
  };
  if (act.eager_backward != nullptr) {
    c.theirs = [&] { act.eager_backward(dy, x); };
  } else {  // through autograd: its forward is timed too, and ours with it
    c.op = name + "_fwd_bwd";
    c.bytes += (act.and_mul ? 3 : 2) * bytes;
    c.ours = [&] {
      forward.call(x);
      backward.call(dy, x);
    };
    c.theirs = [&] {
      c10::InferenceMode off(false);
      at::AutoGradMode grad(true);
      leaf.mutable_grad().reset();
      eager(act, leaf).backward(dy);
    };
  }
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // one token; a short prompt (in L2); a long one; DRAM
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1536}, {128, 1536}, {512, 4096}, {4096, 8192}})
      for (const Act& act : kActs) run(bench, act, rows, cols, dtype);
  }
  return bench.finish();
}
