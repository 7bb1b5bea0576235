#include "hotswap/layers/rotary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/gt.h>
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

RotaryEmbedding::RotaryEmbedding(RopeParameters rope) : rope_(std::move(rope)), original_(rope_frequencies(rope_)) {}

RotaryTables RotaryEmbedding::tables(const Positions& p, at::ScalarType dtype, at::Device device) const {
  const c10::InferenceMode off(false);  // what is kept while generating also serves training, which saves it
  const at::NoGradGuard no_grad;
  if (p.each_row) return on_device(p, dtype);
  if (!depends_on_length() && p.below > 0 && p.ids.defined() &&
      p.ids.numel() == 1) {  // one launch in place of the ten of compute()
    return halves(rows(p.below, dtype, p.ids.device()).index_select(0, p.ids.view({1})).unsqueeze(0));
  }
  if (depends_on_length() && !p.lengths.empty()) return row_by_row(p, dtype, device);
  if (p.ids.defined() && p.lengths.empty()) return compute(p.ids.to(device), inverse_for(p, device), dtype);
  const auto range = [&](int64_t from, int64_t to) {
    return at::arange(from, to, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
  };
  const int64_t end = p.ids.defined() ? p.below : p.start + p.length;
  if (depends_on_length()) return compute(range(p.start, end), inverse_for(p, device), dtype);
  RotaryTables prefix;
  {
    const std::lock_guard lock(mutex_);
    prefix = prefix_;
  }
  const bool fits = prefix.cos.defined() && prefix.cos.size(1) >= end && prefix.cos.scalar_type() == dtype &&
                    prefix.cos.device() == device;
  if (!fits) {
    prefix = compute(range(0, std::max<int64_t>(64, end + end / 2)), inverse_for(p, device), dtype);
    const std::lock_guard lock(mutex_);
    prefix_ = prefix;
  }
  const auto rows_of = [&](const Tensor& table) {  // [1, capacity, dim]
    if (!p.ids.defined()) return table.narrow(1, p.start, p.length);
    return table.squeeze(0).index_select(0, p.ids.reshape({-1})).view({p.ids.size(0), p.ids.size(1), table.size(2)});
  };
  return {rows_of(prefix.cos), rows_of(prefix.sin)};
}

// For a step that is captured: nothing is read from the device, and no table is replaced later.
RotaryTables RotaryEmbedding::on_device(const Positions& p, at::ScalarType dtype) const {
  const Tensor ids = p.ids.reshape({-1});  // [batch], one token each
  if (!depends_on_length()) {
    const Tensor all = rows(p.below, dtype, ids.device());
    const RotaryTables both = halves(all);  // [positions, dim]
    return {both.cos.index_select(0, ids).unsqueeze(1), both.sin.index_select(0, ids).unsqueeze(1)};
  }
  const Tensor lengths = at::add(p.ids, 1);  // [batch, 1]
  return compute(p.ids, inverse_of(lengths).unsqueeze(1), dtype);
}

// As inverse_for() chooses in a batch of one.
RotaryTables RotaryEmbedding::row_by_row(const Positions& p, at::ScalarType dtype, at::Device device) const {
  const Tensor range = at::arange(p.start, p.start + p.length, at::TensorOptions().dtype(at::kLong).device(device));
  std::vector<Tensor> all;
  for (const int64_t length : p.lengths) all.push_back(inverse_for({.start = 0, .length = length}, device));
  const Tensor ids = p.ids.defined() ? p.ids.to(device) : range.unsqueeze(0);
  return compute(ids, at::stack(all).unsqueeze(1), dtype);  // [batch, 1, dim / 2]
}

RotaryEmbedding::Inverses RotaryEmbedding::inverses(at::Device device) const {
  const std::lock_guard lock(mutex_);
  for (const Inverses& made : inverses_) {
    if (made.original.device() == device) return made;
  }
  Inverses fresh{original_.inverse.to(device), {}};
  if (rope_.type == "longrope") {
    fresh.stretched = rope_frequencies(rope_, rope_.original_max_position_embeddings + 1).inverse.to(device);
  }
  return inverses_.emplace_back(std::move(fresh));
}

// Of lengths that the device knows, a scalar or [batch, 1]: [dim / 2] or [batch, dim / 2].
Tensor RotaryEmbedding::inverse_of(const Tensor& lengths) const {
  const Inverses made = inverses(lengths.device());
  const bool is_long = rope_.type == "longrope";
  const int64_t limit = is_long ? rope_.original_max_position_embeddings : rope_.max_position_embeddings;
  return at::where(at::gt(lengths, limit), is_long ? made.stretched : dynamic_inverse(rope_, lengths), made.original);
}

// Those of the longest row. Where its length is on a device it is not read: a captured step chooses at each replay.
Tensor RotaryEmbedding::inverse_for(const Positions& p, at::Device device) const {
  const Inverses made = inverses(device);
  if (!depends_on_length()) return made.original;
  const bool is_long = rope_.type == "longrope";
  const int64_t limit = is_long ? rope_.original_max_position_embeddings : rope_.max_position_embeddings;
  if (p.ids.defined() && !p.ids.is_cpu()) {
    return inverse_of(at::add(at::max(p.ids), 1));
  }
  const int64_t length = p.ids.defined() ? at::max(p.ids).item<int64_t>() + 1 : p.start + p.length;
  if (length <= limit) return made.original;
  return is_long ? made.stretched : rope_frequencies(rope_, length).inverse.to(device);
}

Tensor RotaryEmbedding::rows(int64_t below, at::ScalarType dtype, at::Device device) const {
  if (depends_on_length()) return {};
  const c10::InferenceMode off(false);
  const at::NoGradGuard no_grad;
  const Tensor inverse = inverses(device).original;
  const std::lock_guard lock(mutex_);
  for (const Tensor& made : rows_) {
    if (made.size(0) >= below && made.scalar_type() == dtype && made.device() == device) return made;
  }
  const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(below)));
  const Tensor positions = at::arange(room, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
  const RotaryTables all = compute(positions, inverse, dtype);
  return rows_.emplace_back(at::cat({all.cos, all.sin}, -1).squeeze(0));
}

RotaryTables RotaryEmbedding::halves(const Tensor& row) {
  const int64_t dim = row.size(-1) / 2;
  return {row.narrow(-1, 0, dim), row.narrow(-1, dim, dim)};
}

// Angles are float32 whatever the model's dtype; only cos and sin are rounded to it.
RotaryTables RotaryEmbedding::compute(const Tensor& ids, const Tensor& inverse, at::ScalarType dtype) const {
  const Tensor angles = at::mul(ids.to(at::kFloat).unsqueeze(-1), inverse);  // [batch, time, dim / 2]
  const Tensor both = at::cat({angles, angles}, -1);
  return {at::mul(at::cos(both), original_.attention_scaling).to(dtype),
          at::mul(at::sin(both), original_.attention_scaling).to(dtype)};
}

}  // namespace hotswap
