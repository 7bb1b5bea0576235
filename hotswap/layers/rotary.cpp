#include "hotswap/layers/rotary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace hotswap {
namespace {

Tensor rotate_half(const Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({at::neg(x.narrow(-1, half, half)), x.narrow(-1, 0, half)}, -1);
}

Tensor rotate_pairs(const Tensor& x) {
  const Tensor even = x.slice(-1, 0, c10::nullopt, 2), odd = x.slice(-1, 1, c10::nullopt, 2);
  return at::stack({at::neg(odd), even}, -1).flatten(-2);
}

// cos or sin as the rotation wants it: [1 or batch, 1, time, rotary_dim], each angle at both places of its pair.
Tensor spread(const Tensor& table, int64_t rotary_dim, bool interleaved) {
  const Tensor t = table.unsqueeze(1);
  if (interleaved) {
    const Tensor half = t.narrow(-1, 0, rotary_dim / 2);
    return at::stack({half, half}, -1).flatten(-2);
  }
  return t.size(-1) == rotary_dim ? t : at::cat({t, t}, -1);
}

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved) {
  const int64_t rotary_dim = cos.size(-1), rest = x.size(-1) - rotary_dim;
  const Tensor turned = rest == 0 ? x : x.narrow(-1, 0, rotary_dim);
  Tensor y = at::add(at::mul(turned, cos), at::mul(interleaved ? rotate_pairs(turned) : rotate_half(turned), sin));
  y = y.to(x.scalar_type());
  return rest == 0 ? y : at::cat({y, x.narrow(-1, rotary_dim, rest)}, -1);
}

}  // namespace

std::tuple<Tensor, Tensor> stock::rotary(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                         int64_t rotary_dim, bool interleaved) {
  const Tensor c = spread(cos, rotary_dim, interleaved), s = spread(sin, rotary_dim, interleaved);
  return {rotate(q, c, s, interleaved), rotate(k, c, s, interleaved)};
}

RotaryEmbedding::RotaryEmbedding(RopeParameters rope)
    : rope_(std::move(rope)),
      original_(rope_frequencies(rope_)),
      current_(original_),
      reached_(rope_.max_position_embeddings) {}

RotaryTables RotaryEmbedding::tables(const Positions& p, at::ScalarType dtype, at::Device device) {
  const c10::InferenceMode off(false);  // what is cached while generating also serves training, which saves it
  const at::NoGradGuard no_grad;
  const bool stateful = rope_.type == "dynamic" || rope_.type == "longrope";
  if (stateful) follow(p);
  if (p.ids.defined()) return compute(p.ids, dtype, device);
  const auto range = [&](int64_t from, int64_t to) {
    return at::arange(from, to, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
  };
  if (stateful) return compute(range(p.start, p.start + p.length), dtype, device);
  const int64_t end = p.start + p.length;
  const bool fits = cached_.cos.defined() && cached_.cos.size(1) >= end && cached_.cos.scalar_type() == dtype &&
                    cached_.cos.device() == device;
  if (!fits) cached_ = compute(range(0, std::max<int64_t>(64, end + end / 2)), dtype, device);
  return {cached_.cos.narrow(1, p.start, p.length), cached_.sin.narrow(1, p.start, p.length)};
}

void RotaryEmbedding::follow(const Positions& p) {
  const int64_t length = (p.ids.defined() ? at::max(p.ids).item<int64_t>() : p.start + p.length - 1) + 1;
  if (rope_.type == "longrope") {
    const bool is_long = length > rope_.original_max_position_embeddings;
    current_ = is_long ? rope_frequencies(rope_, rope_.original_max_position_embeddings + 1) : original_;
    return;
  }
  if (length > reached_) {
    current_ = rope_frequencies(rope_, length);
    reached_ = length;
  }
  if (length < rope_.max_position_embeddings && reached_ > rope_.max_position_embeddings) {
    current_ = original_;
    reached_ = rope_.max_position_embeddings;
  }
}

// Angles are float32 whatever the model's dtype; only cos and sin are rounded to it.
RotaryTables RotaryEmbedding::compute(const Tensor& ids, at::ScalarType dtype, at::Device device) {
  current_.inverse = current_.inverse.to(device);  // once: the next step finds it there
  const Tensor angles =
      at::mul(ids.to(device).to(at::kFloat).unsqueeze(-1), current_.inverse);  // [batch, time, dim / 2]
  const Tensor both = at::cat({angles, angles}, -1);
  return {at::mul(at::cos(both), current_.attention_scaling).to(dtype),
          at::mul(at::sin(both), current_.attention_scaling).to(dtype)};
}

}  // namespace hotswap
