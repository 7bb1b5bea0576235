// Experts on a GPU, of Qwen3-30B-A3B's shape: many tokens, and steps of a few. moe_peers.py has who else does it.
#include <ATen/ops/rand.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/common/testing/cuda_bench.h"

namespace {

using namespace kernels::bench;

constexpr int64_t kHidden = 2048, kInner = 768, kExperts = 128, kTopK = 8, kChecked = 4;

Tensor in_float64(const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up, const Tensor& w_down,
                  int64_t tokens) {
  Tensor y = at::zeros({tokens, kHidden}, x.options().dtype(at::kDouble));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < kTopK; ++j) {
      const int64_t e = index[t][j].item<int64_t>();
      const auto halves = wide(w_up[e]).mv(wide(x[t])).chunk(2);
      y[t] += wide(weights[t][j]) * wide(w_down[e]).mv(halves[0] * at::sigmoid(halves[0]) * halves[1]);
    }
  }
  return y;
}

void experts(GpuBench& bench) {
  const kernels::Package& p = gpu_package();
  const Tensor w_up = random({kExperts, 2 * kInner, kHidden}, 1 / std::sqrt(double(kHidden)));
  const Tensor w_down = random({kExperts, kHidden, kInner}, 1 / std::sqrt(double(kInner)));
  const c10::IValue none;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int64_t tokens : {16384, 64, 16, 4, 1}) {
    const Tensor x = random({tokens, kHidden}), dy = random({tokens, kHidden});
    const auto [scores, index] = at::topk(at::rand({tokens, kExperts}, at::device(at::kCUDA)), kTopK);
    const std::string shape = by(tokens, kHidden) + "x" + std::to_string(kInner) + " " + std::to_string(kTopK) +
                              " of " + std::to_string(kExperts);
    const auto options = [&](const char* op, auto&&... before) {
      return p.call(op, before..., "swiglu", 1.0, infinity, false, false, false);
    };
    const int64_t checked = std::min(tokens, kChecked);
    const double products = 6.0 * double(tokens * kTopK) * kHidden * kInner;
    bench.run({.op = "moe_experts",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 0,
               .target_share = 0,
               .ours =
                   [&](int) {
                     return Tensors{
                         options("moe_experts", x, index, scores, w_up, none, w_down, none)[0].narrow(0, 0, checked)};
                   },
               .theirs = nullptr,
               .peer = "",
               .reference = [&](int) { return Tensors{in_float64(x, index, scores, w_up, w_down, checked)}; },
               .tolerance = 1.5 * kBf16Error,
               .target_us = tokens > 64 ? products / 500e6 : 0});
    if (tokens <= 64) continue;
    bench.run({.op = "moe_experts_fwd_bwd",
               .shape = shape,
               .dtype = "bfloat16",
               .bytes = 0,
               .target_share = 0,
               .ours =
                   [&](int) {
                     const Tensors t = options("moe_experts_train", x, index, scores, w_up, none, w_down, none);
                     return p.call("moe_experts_bwd_", dy, x, index, scores, w_up, none, w_down, none, t[1], t[2], t[3],
                                   t[4], "swiglu", 1.0, infinity, false, false, false, true);
                   },
               .theirs = nullptr,
               .peer = "",
               .reference = nullptr,
               .tolerance = 0,
               .target_us = 3 * products / 450e6});
  }
}

}  // namespace

int main(int argc, char** argv) { return gpu_main(argc, argv, experts); }
