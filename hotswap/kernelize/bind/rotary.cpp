// rotary/1
#include "hotswap/layers/rotary.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>

#include "hotswap/kernelize/bind/example.h"

namespace hotswap::binding {
namespace {

// q and k as a model has them: [batch, time, heads, head_dim] in memory, seen as [batch, heads, time, head_dim]
Result<Example> rotary_example(const std::string&, const ExampleSize& size) {
  constexpr int64_t kHeadDim = 64;
  const int64_t heads = std::max<int64_t>(1, size.dim / kHeadDim), kv_heads = std::max<int64_t>(1, heads / 4);
  const Tensor half = random({1, size.rows, kHeadDim / 2}), angle = at::cat({half, half}, -1);
  Example example =
      make_example<RotaryForward>(stock::rotary, {random({1, size.rows, heads, kHeadDim}).transpose(1, 2),
                                                  random({1, size.rows, kv_heads, kHeadDim}).transpose(1, 2),
                                                  at::cos(angle), at::sin(angle), kHeadDim, /*interleaved=*/false});
  example.shape = cat(size.rows, "x", heads, "+", kv_heads, "x", kHeadDim);
  example.trained = 2;
  return example;
}

}  // namespace

std::vector<Contract> rotary_contracts() {
  const std::string tables = "Tensor cos, Tensor sin, int rotary_dim, bool interleaved)";
  return {{"rotary/1",
           {{"forward", "(Tensor q, Tensor k, " + tables + " -> (Tensor q, Tensor k)"},
            {"forward_train", "(Tensor q, Tensor k, " + tables + " -> (Tensor q, Tensor k)"},
            {"backward", "(Tensor dq, Tensor dk, " + tables + " -> (Tensor dq, Tensor dk)"},
            {"forward_inplace", optional_role("(Tensor(a!) q, Tensor(b!) k, " + tables + " -> ()")}},
           bind_regular<RotaryForward, Gradients::kRows>,
           rotary_example}};
}

}  // namespace hotswap::binding
