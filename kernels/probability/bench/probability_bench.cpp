// Rows of probabilities as torch computes them, in cache and in DRAM sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>

#include <cmath>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

constexpr int64_t kIgnore = -100;
using Labels = const std::optional<Tensor>&;
using Unary = Tensor(const Tensor&);
using Binary = Tensor(const Tensor&, const Tensor&);
using Jsd = Tensor(const Tensor&, const Tensor&, Labels, int64_t, double);
using JsdBackward = Tensor(const Tensor&, const Tensor&, const Tensor&, Labels, int64_t, double);

Tensor jsd(const Tensor& x, const Tensor& target) {  // of a half
  const Tensor m = at::logaddexp(x, target) - std::log(2.0);
  return (0.5 * target.exp() * (target - m) + 0.5 * x.exp() * (x - m)).sum(-1);
}

void run(Bench& bench, int64_t rows, int64_t cols, at::ScalarType dtype) {
  const Tensor x = at::randn({rows, cols}, dtype), dy = at::randn({rows, cols}, dtype);
  const int64_t bytes = rows * cols * x.element_size();
  Case c{.shape = std::to_string(rows) + "x" + std::to_string(cols), .dtype = short_name(dtype), .peer = "torch"};
  c.tolerance = dtype == at::kFloat ? 2e-6 : 1.0 / 128, c.target = 0.95;

  static const auto softmax = package().typed<Unary>("softmax");
  c.op = "softmax", c.bytes = 2 * bytes;
  c.ours = [&] { softmax.call(x); };
  c.theirs = [&] { at::softmax(x, -1); };
  c.error = [&] { return relative_l2(softmax.call(x), at::softmax(x.to(at::kDouble), -1)); };
  bench.run(c);

  static const auto softmax_bwd = package().typed<Binary>("softmax_bwd");
  const Tensor y = at::softmax(x, -1);
  c.op = "softmax_bwd", c.bytes = 3 * bytes;
  c.ours = [&] { softmax_bwd.call(dy, y); };
  c.theirs = [&] { at::_softmax_backward_data(dy, y, -1, dtype); };
  c.error = [&] {
    const Tensor p = y.to(at::kDouble), g = dy.to(at::kDouble);
    return relative_l2(softmax_bwd.call(dy, y), p * (g - (g * p).sum(-1, true)));
  };
  bench.run(c);

  static const auto divergence = package().typed<Jsd>("jsd");
  const Tensor q = at::log_softmax(x, -1), p = at::log_softmax(dy, -1);
  c.op = "jsd", c.bytes = 2 * bytes;
  c.ours = [&] { divergence.call(q, p, std::nullopt, kIgnore, 0.5); };
  c.theirs = [&] { jsd(q, p); };
  c.error = [&] {
    return relative_l2(divergence.call(q, p, std::nullopt, kIgnore, 0.5), jsd(q.to(at::kDouble), p.to(at::kDouble)));
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{128, 1024}, {64, 49152}, {512, 49152}})
      run(bench, rows, cols, dtype);
  }
  return bench.finish();
}
