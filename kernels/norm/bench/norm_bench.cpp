// RMSNorm, AddRMSNorm, LayerNorm as transformers writes them, in cache and in DRAM sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

constexpr double kEps = 1e-6;

// transformers' LlamaRMSNorm.forward
Tensor eager_rms_norm(const Tensor& x, const Tensor& weight) {
  const Tensor h = x.to(at::kFloat);
  const Tensor variance = h.pow(2).mean(-1, true);
  return weight * (h * at::rsqrt(variance + kEps)).to(x.scalar_type());
}
Tensor exact_rms_norm(const Tensor& x, const Tensor& weight) {
  const Tensor h = x.to(at::kDouble);
  return weight.to(at::kDouble) * h * at::rsqrt(h.pow(2).mean(-1, true) + kEps);
}

using Forward = Tensor(const Tensor&, const Tensor&, double, double, c10::string_view);
using ForwardTrain = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double, double, c10::string_view);
using Backward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                                            c10::string_view);
using AddForward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double, double,
                                              c10::string_view);
using LayerNormForward = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, double);
using LayerNormBackward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                             const Tensor&);

void run(Bench& bench, int64_t rows, int64_t cols, at::ScalarType dtype) {
  const Tensor x = at::randn({rows, cols}, dtype), r = at::randn({rows, cols}, dtype),
               dy = at::randn({rows, cols}, dtype);
  const Tensor w = at::randn({cols}, dtype);
  const int64_t bytes = rows * cols * x.element_size();
  const double tolerance = dtype == at::kFloat ? 1e-6 : 1.0 / 256;
  Case c;
  c.shape = std::to_string(rows) + "x" + std::to_string(cols);
  c.dtype = short_name(dtype);
  c.tolerance = tolerance;

  static const auto rms_norm = package().typed<Forward>("rms_norm");
  c.op = "rms_norm", c.target = 6, c.peer = "transformers eager", c.bytes = 2 * bytes;
  c.ours = [&] { rms_norm.call(x, w, kEps, 0.0, "llama"); };
  c.theirs = [&] { eager_rms_norm(x, w); };
  c.error = [&] { return relative_l2(rms_norm.call(x, w, kEps, 0.0, "llama"), exact_rms_norm(x, w)); };
  bench.run(c);

  static const auto add_rms_norm = package().typed<AddForward>("add_rms_norm");
  c.op = "add_rms_norm", c.bytes = 4 * bytes;
  c.ours = [&] { add_rms_norm.call(x, r, w, kEps, 0.0, "llama"); };
  c.theirs = [&] { eager_rms_norm(x + r, w); };
  c.error = [&] {
    return relative_l2(std::get<0>(add_rms_norm.call(x, r, w, kEps, 0.0, "llama")), exact_rms_norm(x + r, w));
  };
  bench.run(c);

  static const auto layer_norm = package().typed<LayerNormForward>("layer_norm");
  c.op = "layer_norm", c.target = 0.95, c.peer = "torch layer_norm", c.bytes = 2 * bytes;
  c.ours = [&] { layer_norm.call(x, w, w, kEps); };
  c.theirs = [&] { at::layer_norm(x, {cols}, w, w, kEps); };
  c.error = [&] {
    const Tensor wide = w.to(at::kDouble);
    return relative_l2(layer_norm.call(x, w, w, kEps), at::layer_norm(x.to(at::kDouble), {cols}, wide, wide, kEps));
  };
  bench.run(c);

  // forward and backward, as training does: the peer through autograd, ours by the two ops
  static const auto forward = package().typed<ForwardTrain>("rms_norm_fwd");
  static const auto backward = package().typed<Backward>("rms_norm_bwd");
  const Tensor xg = x.clone().requires_grad_(true), wg = w.clone().requires_grad_(true);
  c.op = "rms_norm_fwd_bwd", c.peer = "transformers eager", c.bytes = 5 * bytes;
  const auto ours = [&] {
    const auto [y, rstd] = forward.call(x, w, kEps, 0.0, "llama");
    return backward.call(dy, x, w, rstd, 0.0, "llama");
  };
  c.ours = [&] { ours(); };
  c.theirs = [&] {
    c10::InferenceMode off(false);
    at::AutoGradMode grad(true);
    xg.mutable_grad().reset(), wg.mutable_grad().reset();
    eager_rms_norm(xg, wg).backward(dy);
  };
  c.error = [&] {
    at::AutoGradMode grad(true);
    const Tensor leaf = x.to(at::kDouble).requires_grad_(true);
    exact_rms_norm(leaf, w).backward(dy.to(at::kDouble));
    return relative_l2(std::get<0>(ours()), leaf.grad());
  };
  bench.run(c);

  static const auto layer_backward = package().typed<LayerNormBackward>("layer_norm_bwd");
  const auto [y, mean, rstd] = at::native_layer_norm(x, {cols}, w, w, kEps);
  // Ours in float32, as layer_norm_fwd keeps them: torch's are of x's dtype, which by itself costs half of the
  // tolerance.
  const Tensor wide_x = x.to(at::kFloat), wide_w = w.to(at::kFloat);
  const auto statistics = at::native_layer_norm(wide_x, {cols}, wide_w, wide_w, kEps);
  const Tensor means = std::get<1>(statistics).flatten(), rstds = std::get<2>(statistics).flatten();
  c.op = "layer_norm_bwd", c.peer = "torch layer_norm", c.bytes = 3 * bytes;
  c.ours = [&] { layer_backward.call(dy, x, w, means, rstds); };
  c.theirs = [&, mean = mean, rstd = rstd] {
    at::native_layer_norm_backward(dy, x, {cols}, mean, rstd, w, w, {true, true, true});
  };
  c.error = [&] {
    const auto wide = w.to(at::kDouble);
    const auto [y2, m2, r2] = at::native_layer_norm(x.to(at::kDouble), {cols}, wide, wide, kEps);
    return relative_l2(std::get<0>(layer_backward.call(dy, x, w, means, rstds)),
                       std::get<0>(at::native_layer_norm_backward(dy.to(at::kDouble), x.to(at::kDouble), {cols}, m2, r2,
                                                                  wide, wide, {true, true, true})));
  };
  bench.run(c);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // one token; a short prompt (in L2); a long one; DRAM
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 576}, {256, 576}, {512, 2048}, {4096, 4096}})
      run(bench, rows, cols, dtype);
  }
  return bench.finish();
}
