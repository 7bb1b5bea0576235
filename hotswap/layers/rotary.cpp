#include "hotswap/layers/rotary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <bit>

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
  if (stateful() && p.ids.defined() && !p.ids.is_cpu()) return compute(p.ids, inverse_there(p.ids), dtype);
  if (stateful()) follow(p);
  current_.inverse = current_.inverse.to(device);  // once: the next step finds it there
  const Tensor& inverse = current_.inverse;
  if (!stateful() && p.below > 0 && p.ids.numel() == 1) return looked_up(p, dtype);
  if (p.ids.defined()) return compute(p.ids.to(device), inverse, dtype);
  const auto range = [&](int64_t from, int64_t to) {
    return at::arange(from, to, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
  };
  if (stateful()) return compute(range(p.start, p.start + p.length), inverse, dtype);
  const int64_t end = p.start + p.length;
  const bool fits = cached_.cos.defined() && cached_.cos.size(1) >= end && cached_.cos.scalar_type() == dtype &&
                    cached_.cos.device() == device;
  if (!fits) cached_ = compute(range(0, std::max<int64_t>(64, end + end / 2)), inverse, dtype);
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

// One launch in place of the ten that compute() is.
RotaryTables RotaryEmbedding::looked_up(const Positions& p, at::ScalarType dtype) {
  return halves(rows(p.below, dtype, p.ids.device()).index_select(0, p.ids.view({1})).unsqueeze(0));
}

Tensor RotaryEmbedding::rows(int64_t below, at::ScalarType dtype, at::Device device) {
  if (stateful()) return {};
  const c10::InferenceMode off(false);
  const at::NoGradGuard no_grad;
  const bool fits = !rows_.empty() && rows_.back().size(0) >= below && rows_.back().scalar_type() == dtype &&
                    rows_.back().device() == device;
  if (!fits) {
    const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(below)));
    const Tensor places = at::arange(room, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
    const RotaryTables all = compute(places, current_.inverse.to(device), dtype);
    rows_.push_back(at::cat({all.cos, all.sin}, -1).squeeze(0));
  }
  return rows_.back();
}

RotaryTables RotaryEmbedding::halves(const Tensor& row) {
  const int64_t dim = row.size(-1) / 2;
  return {row.narrow(-1, 0, dim), row.narrow(-1, dim, dim)};
}

// As follow(), without asking a device for the length: a captured step chooses anew each time.
Tensor RotaryEmbedding::inverse_there(const Tensor& ids) {
  const bool is_long = rope_.type == "longrope";
  if (!original_there_.defined() || original_there_.device() != ids.device()) {
    original_there_ = original_.inverse.to(ids.device());
    if (is_long) {
      long_there_ = rope_frequencies(rope_, rope_.original_max_position_embeddings + 1).inverse.to(ids.device());
    } else {
      reached_there_ = at::full({}, reached_, ids.options());
    }
  }
  const Tensor length = at::add(at::max(ids), 1);
  if (is_long) {
    return at::where(at::gt(length, rope_.original_max_position_embeddings), long_there_, original_there_);
  }
  const int64_t limit = rope_.max_position_embeddings;
  const Tensor reset = at::where(at::lt(length, limit), at::full({}, limit, ids.options()), reached_there_);
  reached_there_.copy_(at::where(at::gt(length, reached_there_), length, reset));  // in place: a graph does so again
  return at::where(at::gt(reached_there_, limit), dynamic_inverse(rope_, reached_there_), original_there_);
}

// Angles are float32 whatever the model's dtype; only cos and sin are rounded to it.
RotaryTables RotaryEmbedding::compute(const Tensor& ids, const Tensor& inverse, at::ScalarType dtype) const {
  const Tensor angles = at::mul(ids.to(at::kFloat).unsqueeze(-1), inverse);  // [batch, time, dim / 2]
  const Tensor both = at::cat({angles, angles}, -1);
  return {at::mul(at::cos(both), current_.attention_scaling).to(dtype),
          at::mul(at::sin(both), current_.attention_scaling).to(dtype)};
}

}  // namespace hotswap
