// Examples of attention/1, decoder_layer/1, deformable_attention/1, rotary/1.
#include "hotswap/layers/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "hotswap/kernelize/contract/arguments.h"
#include "hotswap/kernelize/example/example.h"
#include "hotswap/layers/decoder_layer.h"
#include "hotswap/layers/deformable.h"
#include "hotswap/layers/rotary.h"

namespace hotswap::binding {
namespace {

constexpr int64_t kAttentionHeadDim = 64;

// Causal, with as many key heads as query heads: what every package of the contract has.
Result<LayerExample> attention_example(const std::string&, const ExampleSize& size) {
  const int64_t heads = std::max<int64_t>(1, size.dim / kAttentionHeadDim);
  const std::vector<int64_t> shape{1, size.rows, heads, kAttentionHeadDim};
  const double scale = 1 / std::sqrt(static_cast<double>(kAttentionHeadDim));
  const auto attention = [scale](const auto& forward) -> ExampleForward {
    return [scale, forward](const Values& a) {
      size_t next = 0;
      Tensor q, k, v;
      for (Tensor* each : {&q, &k, &v}) take(a, next, *each);
      return Tensors{forward(q, k, v, AttentionOptions{.scale = scale}, AttentionMetadata())};
    };
  };
  LayerExample example;
  example.shape = join(shape, "x");
  example.arguments = {random(shape), random(shape), random(shape)};
  push(example.arguments, AttentionOptions{.scale = scale});
  example.trained = 3;
  example.stock = attention(stock::sdpa);
  example.exact = example.stock;  // torch's own, in the dtype that it is given
  example.bound = [attention](const LayerOps& layer) {
    const auto module = std::make_shared<BoundLayer<AttentionForward>>(layer, stock::sdpa);
    return attention([module](const auto&... arguments) { return module->slot(arguments...); });
  };
  const auto pairs = static_cast<double>(size.rows) * static_cast<double>(size.rows + 1) / 2;
  example.flops = 4 * pairs * static_cast<double>(heads * kAttentionHeadDim);
  return example;
}

// A layer with four query heads a key head, in the middle of its cache.
Result<LayerExample> decoder_example(const std::string&, const ExampleSize& size) {
  constexpr int64_t kCapacity = 128;
  const int64_t rows = std::min(size.rows, kMaxDecoderRows), hidden = size.dim, ffn = 3 * hidden;
  const int64_t kv_heads = std::max<int64_t>(1, hidden / kAttentionHeadDim / 4), heads = 4 * kv_heads;
  const auto weight = [](int64_t out, int64_t in) { return random({out, in}) * std::pow(double(in), -0.5); };
  const Tensor half = random({1, 1, kAttentionHeadDim / 2}), angle = at::cat({half, half}, -1);
  const DecoderLayerParts parts{.input_norm = random({hidden}),
                                .q = weight(heads * kAttentionHeadDim, hidden),
                                .k = weight(kv_heads * kAttentionHeadDim, hidden),
                                .v = weight(kv_heads * kAttentionHeadDim, hidden),
                                .cos = angle.cos(),
                                .sin = angle.sin(),
                                .k_cache = random({rows, kCapacity, kv_heads, kAttentionHeadDim}),
                                .v_cache = random({rows, kCapacity, kv_heads, kAttentionHeadDim}),
                                .position = at::full({1}, kCapacity / 2, at::kLong),
                                .o = weight(hidden, heads * kAttentionHeadDim),
                                .post_norm = random({hidden}),
                                .gate = weight(ffn, hidden),
                                .up = weight(ffn, hidden),
                                .down = weight(hidden, ffn),
                                .scale = 0.125};
  LayerExample example;
  example.shape = cat(rows, "x", hidden, ", ", heads, "+", kv_heads, "x", kAttentionHeadDim, ", ", ffn);
  example.arguments = {random({rows, 1, hidden})};
  push(example.arguments, parts);
  example.arguments.emplace_back(/*prefetch=*/false);
  const auto decoder = [](const auto& forward) -> ExampleForward {
    return [forward](const Values& a) {
      size_t next = 0;
      Tensor x;
      DecoderLayerParts p;
      take(a, next, x);
      take(a, next, p);
      p.k_cache = p.k_cache.clone();  // an example may run again
      p.v_cache = p.v_cache.clone();
      return Tensors{forward(x, p)};
    };
  };
  example.stock = decoder(stock::decoder_layer);
  example.exact = example.stock;
  example.bound = [decoder](const LayerOps& layer) {
    const auto module = std::make_shared<BoundLayer<DecoderLayerForward>>(layer, stock::decoder_layer);
    return decoder([module](const auto&... arguments) { return module->slot(arguments...); });
  };
  return example;
}

// q and k as a model has them: [batch, time, heads, head_dim] in memory, seen as [batch, heads, time, head_dim]
Result<LayerExample> rotary_example(const std::string&, const ExampleSize& size) {
  const int64_t heads = std::max<int64_t>(1, size.dim / kAttentionHeadDim), kv_heads = std::max<int64_t>(1, heads / 4);
  const Tensor half = random({1, size.rows, kAttentionHeadDim / 2}), angle = at::cat({half, half}, -1);
  LayerExample example = make_example<RotaryForward>(
      stock::rotary, {random({1, size.rows, heads, kAttentionHeadDim}).transpose(1, 2),
                      random({1, size.rows, kv_heads, kAttentionHeadDim}).transpose(1, 2), at::cos(angle),
                      at::sin(angle), kAttentionHeadDim, /*interleaved=*/false});
  example.shape = cat(size.rows, "x", heads, "+", kv_heads, "x", kAttentionHeadDim);
  example.trained = 2;
  return example;
}

// size.rows queries over two levels, the larger about as large; places all over them, and a little beyond.
Result<LayerExample> deformable_example(const std::string&, const ExampleSize& size) {
  constexpr int64_t kPoints = 4, kLevels = 2;
  const int64_t heads = size.dim % 8 == 0 ? 8 : 1;
  int64_t side = 2;
  while (side * side < size.rows) side += 2;
  const int64_t half = side / 2;
  const Tensor shapes = at::tensor({side, side, half, half}, at::kLong).view({kLevels, 2});
  const Tensor starts = at::tensor({int64_t{0}, side * side}, at::kLong);
  const Tensor places = at::rand({1, size.rows, heads, kLevels, kPoints, 2}, at::kFloat) * 1.2 - 0.1;
  const Tensor weights = at::softmax(random({1, size.rows, heads, kLevels * kPoints}), -1);
  LayerExample example = make_example<DeformableForward>(
      stock::deformable_attention, {random({1, side * side + half * half, heads, size.dim / heads}), shapes, starts,
                                    places, weights.view({1, size.rows, heads, kLevels, kPoints})});
  example.shape = cat(size.rows, "x", heads, "x", size.dim / heads, ", 2 levels of 4 points");
  return example;
}

}  // namespace

std::vector<ContractExample> attention_examples() {
  return {{"attention/1", attention_example, {.rows = 128, .dim = 256}, {.rows = 2048, .dim = 1024}},
          {"decoder_layer/1", decoder_example, {.rows = 1, .dim = 512}, {.rows = 1, .dim = 4096}},
          {"deformable_attention/1", deformable_example, {.rows = 64, .dim = 256}, {.rows = 4096, .dim = 256}},
          {"rotary/1", rotary_example}};
}

}  // namespace hotswap::binding
