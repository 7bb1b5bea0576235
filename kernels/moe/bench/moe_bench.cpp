// Experts on the CPU against transformers' grouped_mm written with torch's ops.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/common/testing/bench.h"
#include "kernels/common/testing/packing_formulas.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

struct Shape {
  int64_t tokens, top_k, experts, hidden, inner;
};

// Sorted by expert, two grouped products, back in place, summed.
Tensor grouped(const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up, const Tensor& w_down) {
  const int64_t k = index.size(1);
  const Tensor flat = index.flatten(), order = flat.argsort();
  const Tensor rows = x.index_select(0, order.div(k, "floor"));
  const Tensor offsets = at::bincount(flat, {}, w_up.size(0)).cumsum(0).to(at::kInt);
  const auto halves = at::_grouped_mm(rows, w_up.transpose(1, 2), offsets).chunk(2, -1);
  const Tensor y = at::_grouped_mm(at::silu(halves[0]) * halves[1], w_down.transpose(1, 2), offsets);
  const Tensor scaled = y * weights.flatten().index_select(0, order).unsqueeze(1);
  return scaled.index_select(0, order.argsort()).view({x.size(0), k, -1}).sum(1).to(x.scalar_type());
}

// Expert by expert: token by token the widened weights of 512 tokens took minutes.
Tensor in_float64(const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up,
                  const Tensor& w_down) {
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  Tensor y = at::zeros(x.sizes(), at::kDouble);
  for (int64_t e = 0; e < w_up.size(0); ++e) {
    const Tensor at_expert = (index == e).nonzero(), token = at_expert.select(1, 0);
    if (token.size(0) == 0) continue;
    const Tensor scores = weights.flatten().index_select(0, token * index.size(1) + at_expert.select(1, 1));
    const auto halves = wide(x.index_select(0, token)).mm(wide(w_up[e]).t()).chunk(2, 1);
    const Tensor rows = (at::silu(halves[0]) * halves[1]).mm(wide(w_down[e]).t());
    y.index_add_(0, token, wide(scores).unsqueeze(1) * rows);
  }
  return y;
}

void run(Bench& bench, const Shape& s, at::ScalarType dtype) {
  const Tensor x = at::randn({s.tokens, s.hidden}, dtype), weights = at::rand({s.tokens, s.top_k});
  const Tensor index = at::randint(s.experts, {s.tokens, s.top_k}, at::kLong);
  const Tensor w_up = at::randn({s.experts, 2 * s.inner, s.hidden}, dtype) / std::sqrt(double(s.hidden));
  const Tensor w_down = at::randn({s.experts, s.hidden, s.inner}, dtype) / std::sqrt(double(s.inner));
  const int64_t hit = (at::bincount(index.flatten(), {}, s.experts) > 0).sum().item<int64_t>();
  const auto ours = [&] {
    return package().call("moe_experts", x, index, weights, w_up, c10::IValue(), w_down, c10::IValue(), "swiglu", 1.0,
                          std::numeric_limits<double>::infinity(), false, false, false)[0];
  };
  bench.run({.op = "moe_experts",
             .shape = std::to_string(s.tokens) + "x" + std::to_string(s.hidden) + "x" + std::to_string(s.inner) + " " +
                      std::to_string(s.top_k) + " of " + std::to_string(s.experts),
             .dtype = short_name(dtype),
             .peer = "transformers grouped_mm",
             .bytes = hit * 3 * s.inner * s.hidden * x.element_size(),
             .ours = [&] { ours(); },
             .theirs = [&] { grouped(x, index, weights, w_up, w_down); },
             .error = [&] { return relative_l2(ours(), in_float64(x, index, weights, w_up, w_down)); },
             .tolerance = dtype == at::kFloat ? 1e-5 : 3.0 / 256,
             .target = s.tokens <= 16 ? 2.0 : 1.1});
}

// Experts in blocks, whose bytes are read, beside the same dequantised to bfloat16. All experts have the same weights,
// each in memory of its own.
void run_packed(Bench& bench, const Shape& s, const std::string& up, const std::string& down) {
  const at::Generator by = at::detail::getDefaultCPUGenerator();
  const double scale = 0.004;
  const auto [up_bytes, up_exact] =
      kernels::testing::random_blocks(up, 2 * s.inner, s.hidden, scale / std::sqrt(double(s.hidden)), scale / 64, by);
  const auto [down_bytes, down_exact] =
      kernels::testing::random_blocks(down, s.hidden, s.inner, scale / std::sqrt(double(s.inner)), scale / 64, by);
  const Tensor exact_up = up_exact, exact_down = down_exact;  // lambdas of g++ 11 take no names of a pair
  const auto of_all = [&](const Tensor& one) { return one.unsqueeze(0).expand({s.experts, -1, -1}); };
  const Tensor w_up = of_all(up_bytes).contiguous(), w_down = of_all(down_bytes).contiguous();
  const Tensor wide_up = of_all(exact_up.to(at::kBFloat16)).contiguous(),
               wide_down = of_all(exact_down.to(at::kBFloat16)).contiguous();
  const Tensor x = at::randn({s.tokens, s.hidden}, at::kBFloat16), weights = at::rand({s.tokens, s.top_k});
  const Tensor index = at::randint(s.experts, {s.tokens, s.top_k}, at::kLong);
  const int64_t hit = (at::bincount(index.flatten(), {}, s.experts) > 0).sum().item<int64_t>();
  const auto lower = [](std::string name) {
    for (char& c : name) c = char(std::tolower(c));
    return name;
  };
  const double none = std::numeric_limits<double>::infinity();
  const auto ours = [&] {
    return package().call("moe_experts_packed", x, index, weights, w_up, lower(up), c10::IValue(), w_down, lower(down),
                          c10::IValue(), "swiglu", 1.0, none, false, false, false)[0];
  };
  const auto dequantised = [&] {
    return package().call("moe_experts", x, index, weights, wide_up, c10::IValue(), wide_down, c10::IValue(), "swiglu",
                          1.0, none, false, false, false)[0];
  };
  bench.run(
      {.op = "moe_experts_packed",
       .shape = std::to_string(s.tokens) + "x" + std::to_string(s.hidden) + "x" + std::to_string(s.inner) + " " +
                std::to_string(s.top_k) + " of " + std::to_string(s.experts) + " " + up + ", " + down,
       .dtype = "bfloat16",
       .peer = "dequantised to bfloat16",
       .bytes = hit * (w_up[0].numel() + w_down[0].numel()),
       .ours = [&] { ours(); },
       .theirs = [&] { dequantised(); },
       .error =
           [&] { return relative_l2(ours(), in_float64(x, index, weights, of_all(exact_up), of_all(exact_down))); },
       .tolerance = 3.0 / 256,
       .target = s.tokens <= 16 ? 2.0 : 0.5});
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // a step of one and of sixteen sequences, and a prompt
    for (const int64_t tokens : {1, 16, 64, 512}) run(bench, {tokens, 8, 128, 512, 192}, dtype);
    for (const int64_t tokens : {1, 16, 512}) run(bench, {tokens, 2, 8, 1024, 2816}, dtype);
  }
  // layers of Qwen3-30B-A3B and of gpt-oss-20b: a step, a few at once, a prompt
  if (bench.wants("moe_experts_packed")) {
    for (const int64_t tokens : {1, 4, 512}) run_packed(bench, {tokens, 8, 128, 2048, 768}, "Q4_K", "Q6_K");
    for (const int64_t tokens : {1, 512}) run_packed(bench, {tokens, 4, 32, 2880, 2880}, "MXFP4", "MXFP4");
  }
  return bench.finish();
}
