#include "hotswap/layers/decoder_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>

#include <limits>
#include <sstream>
#include <tuple>

#include "hotswap/base/error.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rotary.h"

namespace hotswap {
namespace {

// Which of the formats is a weight's.
enum Product : uint8_t { kQueries, kKeys, kValues, kOutput, kGate, kUp, kDown };

Weight named_weight(const DecoderLayerParts& p, Product which, const Tensor& data, int64_t columns) {
  if (p.formats.empty() || data.is_floating_point()) return weight_of(data, columns);
  std::istringstream names(p.formats);
  std::string name;
  for (int i = 0; i <= which; ++i) std::getline(names, name, ',');
  const auto format = names ? weight_format_of(name) : std::nullopt;
  if (!format) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("the formats of seven weights, among ", weight_format_names()),
                 .got = cat('"', p.formats, '"'),
                 .next = "name one for each, separated by commas"});
  }
  return {.format = *format, .data = data, .logical_shape = {data.size(0), columns}};
}

Tensor normed(const Tensor& x, const Tensor& weight, double eps) {
  return weight.defined() ? stock::rms_norm(x, weight, eps, 0, "llama") : x;
}

}  // namespace

Tensor stock::decoder_layer(const Tensor& x, const DecoderLayerParts& p) {
  const int64_t batch = x.size(0), capacity = p.k_cache.size(1), kv_heads = p.k_cache.size(2), dim = p.k_cache.size(3);
  const auto product = [&](Product which, const Tensor& of, const Tensor& weight, const Tensor& bias) {
    const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
    const Weight w = named_weight(p, which, weight, of.size(-1));
    return w.encoded() ? stock::packed_linear(of, w, given) : stock::linear(of, weight, given);
  };
  const Tensor n = normed(x, p.input_norm, p.eps);
  const auto heads = [&](const Tensor& y) { return y.view({batch, 1, -1, dim}); };
  Tensor q = normed(heads(product(kQueries, n, p.q, p.q_bias)), p.q_norm, p.head_eps).transpose(1, 2);
  Tensor k = normed(heads(product(kKeys, n, p.k, p.k_bias)), p.k_norm, p.head_eps).transpose(1, 2);
  std::tie(q, k) = stock::rotary(q, k, p.cos, p.sin, dim, /*interleaved=*/false);
  const Tensor position = p.position.expand({batch}), rows = at::arange(batch, position.options());
  Tensor(p.k_cache).index_put_({rows, position}, k.squeeze(2));
  Tensor(p.v_cache).index_put_({rows, position}, heads(product(kValues, n, p.v, p.v_bias)).squeeze(1));

  // [batch, heads, keys, dim]; what lies beyond the position may be anything
  const Tensor key = at::arange(capacity, position.options()), own = position.unsqueeze(1);
  Tensor hidden = key > own;  // [batch, capacity]
  if (p.window >= 0) hidden = hidden | (key < own - p.window);
  const int64_t group = q.size(1) / kv_heads;
  const auto all = [&](const Tensor& cache) {
    return cache.transpose(1, 2).repeat_interleave(group, 1).masked_fill(hidden.view({batch, 1, capacity, 1}), 0);
  };
  const Tensor scores = at::matmul(q, all(p.k_cache).transpose(2, 3)).to(at::kFloat) * p.scale;
  const Tensor weights = at::softmax(
      scores.masked_fill(hidden.view({batch, 1, 1, capacity}), -std::numeric_limits<double>::infinity()), -1);
  const Tensor attended =
      at::matmul(weights.to(x.scalar_type()), all(p.v_cache)).transpose(1, 2).reshape({batch, 1, -1});
  const Tensor h = x + product(kOutput, attended, p.o, p.o_bias), m = normed(h, p.post_norm, p.eps);
  const Tensor gate = product(kGate, m, p.gate, p.gate_bias), up = product(kUp, m, p.up, p.up_bias);
  const Tensor gated = (p.activation == "silu" ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
  return h + product(kDown, gated, p.down, p.down_bias);
}

SlotBase::Weights weights_by_name(const DecoderLayerParts& p) {
  return {{{"input_norm", p.input_norm},
           {"q", p.q},
           {"k", p.k},
           {"v", p.v},
           {"o", p.o},
           {"post_norm", p.post_norm},
           {"gate", p.gate},
           {"up", p.up},
           {"down", p.down}},
          p.formats};
}

}  // namespace hotswap
