// Attention in float64, row by row of the book, with torch's autograd for its gradients.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {

struct Masks {
  bool causal = false;
  int64_t left = -1, right = -1, chunk = 0;
  double softcap = 0;
  bool sinks = false, alibi = false;
};

struct Shape {
  int64_t batch = 1, rows, keys, heads = 2, key_heads = 2, dim, value_dim = 0;
  int64_t values() const { return value_dim == 0 ? dim : value_dim; }
  std::string str() const {
    std::string text;
    for (const int64_t n : {batch, rows, keys, heads, key_heads, dim, values()}) text += " " + std::to_string(n);
    return text;
  }
};

// Can the kernels of the device that this process tests do it? A GPU's say what they cannot (layers.cuda.json).
inline bool device_takes(const Shape& s, at::ScalarType dtype) {
  if (!on_cuda()) return true;
  const auto fits = [](int64_t n) { return n % 8 == 0 && n <= 512; };
  return dtype != at::kFloat && fits(s.dim) && fits(s.values());
}
inline at::ScalarType exact_dtype() { return on_cuda() ? at::kHalf : at::kFloat; }

inline std::string shown(const Masks& m) {
  std::string text = m.causal ? " causal" : "";
  text += " window " + std::to_string(m.left) + " " + std::to_string(m.right) + " chunk " + std::to_string(m.chunk);
  text += " softcap " + std::to_string(m.softcap) + (m.sinks ? " sinks" : "") + (m.alibi ? " alibi" : "");
  return text;
}

// One sequence: q [rows, heads, dim], k, v [keys, key_heads, dim] -> out [rows, heads, value_dim], lse [heads, rows]
inline std::pair<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                                        const Tensor& slopes, double scale, const Masks& m) {
  const int64_t rows = q.size(0), keys = k.size(0), group = q.size(1) / k.size(1);
  const auto by_head = [&](const Tensor& t) { return t.transpose(0, 1).repeat_interleave(group, 0); };
  Tensor x = q.transpose(0, 1).matmul(by_head(k).transpose(1, 2)) * scale;  // [heads, rows, keys]
  if (m.softcap > 0) x = at::tanh(x / m.softcap) * m.softcap;
  const auto options = at::TensorOptions().dtype(at::kLong).device(q.device());
  const Tensor i = at::arange(keys - rows, keys, options).unsqueeze(1), j = at::arange(keys, options);
  if (slopes.defined()) x = x - slopes.view({-1, 1, 1}) * (j - i).abs();
  Tensor seen = at::ones({rows, keys}, options.dtype(at::kBool));
  if (m.causal) seen = seen & (j <= i);
  if (m.left >= 0) seen = seen & (j >= i - m.left);
  if (m.right >= 0 && !m.causal) seen = seen & (j <= i + m.right);
  if (m.chunk > 0) seen = seen & (j.div(m.chunk, "floor") == i.div(m.chunk, "floor"));
  // A row that sees nothing is given a score that is taken away again: autograd knows no gradient of log 0.
  const Tensor some = seen.any(1, true);
  x = at::where(seen | ~some, x, at::full_like(x, -std::numeric_limits<double>::infinity()));
  Tensor lse = keys == 0 ? at::full_like(x.sum(2), -std::numeric_limits<double>::infinity()) : at::logsumexp(x, {2});
  lse = at::where(some.squeeze(1), lse, at::full_like(lse, -std::numeric_limits<double>::infinity()));
  if (sinks.defined()) lse = at::where(some.squeeze(1), at::logaddexp(lse, sinks.view({-1, 1})), sinks.view({-1, 1}));
  const Tensor safe = at::where(some.squeeze(1), lse, at::zeros({}, lse.options()));
  const Tensor p = at::where(seen, (x - safe.unsqueeze(2)).exp(), at::zeros({}, x.options()));
  return {p.matmul(by_head(v)).transpose(0, 1), lse};
}

// Of a batch: {out, lse}. inputs: q, k, v, then sinks where there are some.
inline Formula formula(double scale, const Masks& m, const Tensor& slopes) {
  return [=](const Tensors& in) {
    Tensors outs, lses;
    for (int64_t b = 0; b < in[0].size(0); ++b) {
      auto [out, lse] = attend(in[0][b], in[1][b], in[2][b], m.sinks ? in[3] : Tensor(),
                               slopes.defined() ? slopes.to(at::kDouble) : slopes, scale, m);
      outs.push_back(out);
      lses.push_back(lse);
    }
    return Tensors{at::stack(outs), at::stack(lses)};
  };
}

inline c10::IValue optional(const Tensor& t) { return t.defined() ? c10::IValue(t) : c10::IValue(); }

// q, k, v, sinks and slopes of a case, and what every op takes of its masks.
struct Inputs {
  Shape shape;
  Masks masks;
  Tensor q, k, v, sinks, slopes;
  double scale;

  Inputs(const Shape& s, const Masks& m, at::ScalarType dtype) : shape(s), masks(m) {
    // Scores of the softcap's size, where tanh is no straight line.
    q = random_tensor({s.batch, s.rows, s.heads, s.dim}, dtype, m.softcap > 0 ? m.softcap / 2 : 1);
    k = random_tensor({s.batch, s.keys, s.key_heads, s.dim}, dtype);
    v = random_tensor({s.batch, s.keys, s.key_heads, s.values()}, dtype);
    scale = 1 / std::sqrt(double(s.dim));
    if (m.sinks) sinks = random_tensor({s.heads}, at::kFloat);
    if (m.alibi) slopes = random_tensor({s.heads}, at::kFloat).abs() * 0.1;
  }
  Tensors tensors() const {
    Tensors all{q, k, v};
    if (sinks.defined()) all.push_back(sinks);
    return all;
  }
  // call("attention", before..., options, after...)
  template <class... After>
  std::vector<Tensor> call(const std::string& op, std::vector<c10::IValue> stack, After... after) const {
    for (const auto& option :
         {optional(sinks), optional(slopes), c10::IValue(scale), c10::IValue(masks.causal), c10::IValue(masks.left),
          c10::IValue(masks.right), c10::IValue(masks.chunk), c10::IValue(masks.softcap)})
      stack.push_back(option);
    (stack.emplace_back(after), ...);
    if (in_graphs())
      call_in_graph(package().handle(op), stack);
    else
      package().handle(op).callBoxed(stack);
    std::vector<Tensor> out;
    for (auto& value : stack) out.push_back(value.toTensor());
    return out;
  }
  std::string str() const { return shape.str() + shown(masks); }
};

}  // namespace kernels::testing
