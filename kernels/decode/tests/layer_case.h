// A decoder layer's step as tests make it: its tensors, the op's call, and the reference in float64 by ATen.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {

constexpr double kEps = 1e-5;

struct Shape {
  int64_t rows, hidden, heads, kv_heads, head_dim, ffn, position;
  int64_t window = -1;
  bool bias = false, head_norms = false;
  const char* act = "silu";
  std::string str() const {
    std::ostringstream text;
    text << rows << "x" << hidden << ", " << heads << "/" << kv_heads << " heads of " << head_dim << ", ffn " << ffn
         << ", position " << position << ", window " << window << (bias ? ", bias" : "")
         << (head_norms ? ", head norms" : "") << ", " << act;
    return text.str();
  }
  int64_t capacity() const { return position + 5; }
};

// In the op's order.
struct Layer {
  Tensor x, input_norm, q, q_bias, k, k_bias, v, v_bias, q_norm, k_norm, cos, sin, k_cache, v_cache, position, o,
      o_bias, post_norm, gate, gate_bias, up, up_bias, down, down_bias;
  Shape shape;

  Layer(const Shape& s, at::ScalarType dtype) : shape(s) {
    const auto make = [&](at::IntArrayRef sizes, double scale) { return random_tensor(sizes, dtype, scale); };
    const auto weight = [&](int64_t out, int64_t in) { return make({out, in}, 1 / std::sqrt(double(in))); };
    const auto bias = [&](int64_t out) { return s.bias ? make({out}, 0.5) : Tensor(); };
    const auto near_one = [&](int64_t size) { return make({size}, 0.2) + 1; };
    const int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
    x = make({s.rows, 1, s.hidden}, 1), input_norm = near_one(s.hidden), post_norm = near_one(s.hidden);
    q = weight(queries, s.hidden), k = weight(keys, s.hidden), v = weight(keys, s.hidden),
    o = weight(s.hidden, queries);
    gate = weight(s.ffn, s.hidden), up = weight(s.ffn, s.hidden), down = weight(s.hidden, s.ffn);
    q_bias = bias(queries), k_bias = bias(keys), v_bias = bias(keys), o_bias = bias(s.hidden);
    gate_bias = bias(s.ffn), up_bias = bias(s.ffn), down_bias = bias(s.hidden);
    if (s.head_norms) q_norm = near_one(s.head_dim), k_norm = near_one(s.head_dim);
    const Tensor half = random_tensor({1, 1, s.head_dim / 2}, at::kFloat), angle = at::cat({half, half}, -1);
    cos = angle.cos().to(dtype), sin = angle.sin().to(dtype);
    // As the host's cache has it: heads before time in memory. NaN where nothing was written yet.
    const auto cache = [&] {
      const Tensor filled = make({s.rows, s.kv_heads, s.position, s.head_dim}, 1);
      const Tensor empty = at::full({s.rows, s.kv_heads, s.capacity() - s.position, s.head_dim},
                                    std::numeric_limits<double>::quiet_NaN(), filled.options());
      return at::cat({filled, empty}, 2).transpose(1, 2);
    };
    k_cache = cache(), v_cache = cache();
    position = at::full({1}, s.position, at::kLong).to(device());
  }
  double scale() const { return 1 / std::sqrt(double(shape.head_dim)); }
  Tensor run() const {
    const auto optional = [](const Tensor& t) { return t.defined() ? c10::IValue(t) : c10::IValue(); };
    if (!formats.empty()) {
      return package().call("decoder_layer_packed", x, input_norm, q, optional(q_bias), k, optional(k_bias), v,
                            optional(v_bias), optional(q_norm), optional(k_norm), cos, sin, k_cache, v_cache, position,
                            o, optional(o_bias), post_norm, gate, optional(gate_bias), up, optional(up_bias), down,
                            optional(down_bias), kEps, kEps, scale(), shape.window, shape.act, formats,
                            weights_are_old)[0];
    }
    return package().call("decoder_layer", x, input_norm, q, optional(q_bias), k, optional(k_bias), v, optional(v_bias),
                          optional(q_norm), optional(k_norm), cos, sin, k_cache, v_cache, position, o, optional(o_bias),
                          post_norm, gate, optional(gate_bias), up, optional(up_bias), down, optional(down_bias), kEps,
                          kEps, scale(), shape.window, shape.act, weights_are_old)[0];
  }
  bool weights_are_old = false;
  std::string formats;  // of q, k, v, o, gate, up, down, where they are named
};

inline int64_t rows_for(const Layer& l) {
  if (!l.formats.empty()) {
    return package()
        .call_values("decoder_layer_packed_rows", l.input_norm, l.q, l.k, l.v, l.o, l.post_norm, l.gate, l.up, l.down,
                     l.formats)[0]
        .toInt();
  }
  return package()
      .call_values("decoder_layer_rows", l.input_norm, l.q, l.k, l.v, l.o, l.post_norm, l.gate, l.up, l.down)[0]
      .toInt();
}

struct Reference {
  Tensor out, k, v;  // k, v: of the new token, [rows, kv_heads, head_dim]
};

inline Reference reference(const Layer& in) {
  const Shape& s = in.shape;
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const auto norm = [&](const Tensor& x, const Tensor& weight) {
    return weight.defined() ? x * at::rsqrt(x.pow(2).mean(-1, true) + kEps) * wide(weight) : x;
  };
  const auto linear = [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return at::linear(x, wide(weight), bias.defined() ? std::optional(wide(bias)) : std::nullopt);
  };
  const auto rotate = [&](const Tensor& x) {  // [rows, heads, head_dim]
    const int64_t half = s.head_dim / 2;
    const Tensor turned = at::cat({at::neg(x.narrow(-1, half, half)), x.narrow(-1, 0, half)}, -1);
    return x * wide(in.cos) + turned * wide(in.sin);
  };
  const auto heads = [&](const Tensor& x) { return x.view({s.rows, -1, s.head_dim}); };
  const Tensor x = wide(in.x), n = norm(x, in.input_norm);
  const Tensor q = rotate(norm(heads(linear(n, in.q, in.q_bias)), in.q_norm));
  const Tensor k = rotate(norm(heads(linear(n, in.k, in.k_bias)), in.k_norm)), v = heads(linear(n, in.v, in.v_bias));
  const int64_t first = s.window < 0 ? 0 : std::max<int64_t>(0, s.position - s.window);
  const auto seen = [&](const Tensor& cache, const Tensor& fresh) {  // [rows, heads, keys, head_dim]
    const Tensor old = wide(cache).narrow(1, first, s.position - first);
    return at::cat({old, fresh.unsqueeze(1)}, 1).transpose(1, 2).repeat_interleave(s.heads / s.kv_heads, 1);
  };
  const Tensor scores = at::matmul(q.unsqueeze(2), seen(in.k_cache, k).transpose(2, 3)) * in.scale();
  const Tensor attended = at::matmul(at::softmax(scores, -1), seen(in.v_cache, v)).view({s.rows, 1, -1});
  const Tensor h = x + linear(attended, in.o, in.o_bias), m = norm(h, in.post_norm);
  const Tensor gate = linear(m, in.gate, in.gate_bias), up = linear(m, in.up, in.up_bias);
  const Tensor gated = (std::string(s.act) == "silu" ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
  return {h + linear(gated, in.down, in.down_bias), k, v};
}

// Of the tensors that a GPU takes.
inline std::vector<at::ScalarType> dtypes() {
  if (on_cuda()) return {at::kBFloat16, at::kHalf};
  return {at::kFloat, at::kBFloat16, at::kHalf};
}

}  // namespace kernels::testing
