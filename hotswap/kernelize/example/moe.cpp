// The example of moe/1.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/softmax.h>

#include <cmath>

#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/kernelize/example/example.h"
#include "hotswap/layers/experts.h"

namespace hotswap::binding {
namespace {

struct ExampleForm {
  const char* layer;
  ExpertsOptions options;
  bool bias;
  int64_t k;
};

const ExampleForm* example_form(const std::string& layer) {
  static const std::vector<ExampleForm> forms = {
      {"Experts", {}, /*bias=*/false, /*k=*/2},
      {"MegaBlocksMoeMLP",
       {.activation = "swiglu_oai", .alpha = 1.702, .limit = 7, .interleaved = true, .transposed = true},
       /*bias=*/true,
       /*k=*/2},
      {"Llama4TextMoe", {.transposed = true, .scale_input = true}, /*bias=*/false, /*k=*/1}};
  for (const ExampleForm& form : forms) {
    if (layer == form.layer) return &form;
  }
  return nullptr;
}

constexpr int64_t kExperts = 8;

// `out` is the experts' own width.
Result<LayerExample> experts_example(const std::string& layer, const ExampleSize& size) {
  const ExampleForm* form = example_form(layer);
  if (form == nullptr) return Reason{cat("no stock experts are known by the name ", layer)};
  const int64_t dim = size.dim, hidden = size.out > 0 ? size.out : size.dim;
  const ExpertsOptions& o = form->options;
  const auto weights = [&](int64_t out, int64_t in) {  // of a size that keeps numbers near 1
    const Tensor w =
        random(o.transposed ? std::vector<int64_t>{kExperts, in, out} : std::vector<int64_t>{kExperts, out, in});
    return w / std::sqrt(static_cast<double>(in));
  };
  const auto bias = [&](int64_t out) { return form->bias ? random({kExperts, out}) : Tensor(); };
  const Routing routing{.index = at::randint(kExperts, {size.rows, form->k}, at::kLong),
                        .weights = at::softmax(random({size.rows, form->k}), -1)};
  const auto experts = [o](const auto& forward) -> ExampleForward {
    return [o, forward](const Values& a) {
      size_t next = 0;
      Tensor x;
      Routing routing;
      ExpertWeights w{.up = {}, .down = {}};
      take(a, next, x);
      take(a, next, routing);
      take(a, next, w);
      return Tensors{forward(x, routing, w, o)};
    };
  };
  LayerExample example;
  example.shape = cat(size.rows, "x", dim, " to ", form->k, " of ", kExperts, "x", hidden);
  example.arguments = {random({size.rows, dim})};
  push(example.arguments, routing);
  push(example.arguments, ExpertWeights{.up = weights(2 * hidden, dim),
                                        .up_bias = bias(2 * hidden),
                                        .down = weights(dim, hidden),
                                        .down_bias = bias(dim)});
  push(example.arguments, o);
  example.trained = form->bias ? 6 : 4;
  example.stock = experts(stock::experts);
  example.exact = example.stock;  // torch's own, in the dtype that it is given
  example.bound = [experts](const LayerOps& layer) {
    const auto module = std::make_shared<BoundLayer<ExpertsForward>>(layer, stock::experts);
    return experts([module](const auto&... each) { return module->slot(each...); });
  };
  example.flops = 6.0 * static_cast<double>(size.rows * form->k * dim * hidden);
  return example;
}

// Blocks of Q8_0 with any codes: of 34 bytes the first two are a half.
Weight random_q8_0(int64_t out, int64_t in) {
  const Tensor scales = (random({kExperts, out, in / 32, 1}) * 0.02 / std::sqrt(static_cast<double>(in))).to(at::kHalf);
  const Tensor codes = at::randint(0, 256, {kExperts, out, in / 32, 32}, at::kByte);
  return experts_weight_of(at::cat({scales.view(at::kByte), codes}, -1).view({kExperts, out, -1}), WeightFormat::kQ8_0);
}

Result<LayerExample> packed_experts_example(const std::string&, const ExampleSize& size) {
  const auto whole_blocks = [](int64_t width) { return (width + 31) / 32 * 32; };
  const int64_t dim = whole_blocks(size.dim), hidden = whole_blocks(size.out > 0 ? size.out : size.dim), k = 2;
  Values arguments = {random({size.rows, dim})};
  push(arguments, Routing{.index = at::randint(kExperts, {size.rows, k}, at::kLong),
                          .weights = at::softmax(random({size.rows, k}), -1)});
  push(arguments, PackedExpertWeights{.up = random_q8_0(2 * hidden, dim), .down = random_q8_0(dim, hidden)});
  push(arguments, ExpertsOptions());
  LayerExample example = make_example<PackedExpertsForward>(stock::packed_experts, std::move(arguments));
  example.trained = 0;
  example.shape = cat(size.rows, "x", dim, " to ", k, " of ", kExperts, "x", hidden, " Q8_0");
  example.flops = 6.0 * static_cast<double>(size.rows * k * dim * hidden);
  return example;
}

}  // namespace

std::vector<ContractExample> moe_examples() {
  return {{"packed_moe/1", packed_experts_example, {.rows = 1, .dim = 256}, {.rows = 1, .dim = 2048}},
          {"moe/1", experts_example, {.rows = 16, .dim = 256}, {.rows = 2048, .dim = 1024}}};
}

}  // namespace hotswap::binding
