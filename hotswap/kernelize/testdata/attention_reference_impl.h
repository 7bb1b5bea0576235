// Attention in float64 on ATen, for test packages of any shape: every option, one sequence or several.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Options {
  OptTensor sinks, slopes;
  double scale;
  bool causal;
  int64_t left, right, chunk;
  double softcap;
};

// Rows [time, heads, dim] as [heads, time, dim] in float64, key heads repeated.
inline Tensor by_head(const Tensor& x, int64_t heads) {
  return x.to(at::kDouble).transpose(0, 1).repeat_interleave(heads / x.size(1), 0);
}

struct Scores {
  Tensor scores;  // [heads, time, kv_time], -inf where not seen
  Tensor slope;   // of the softcap, the same
};

inline Scores scores_of(const Tensor& q, const Tensor& k, const Options& o) {  // [heads, time or kv_time, dim]
  const int64_t time = q.size(1), kv_time = k.size(1);
  Tensor scores = q.matmul(k.transpose(1, 2)) * o.scale, slope = at::ones_like(scores);
  if (o.softcap != 0) {
    const Tensor t = at::tanh(scores / o.softcap);
    slope = 1 - t * t;
    scores = t * o.softcap;
  }
  const Tensor i = at::arange(kv_time - time, kv_time, at::kLong).unsqueeze(1), j = at::arange(kv_time, at::kLong);
  if (o.slopes) scores = scores - o.slopes->to(at::kDouble).view({-1, 1, 1}) * (j - i).abs();
  Tensor seen = at::ones({time, kv_time}, at::kBool);
  if (o.causal) seen = seen & (j <= i);
  if (o.left >= 0) seen = seen & (j >= i - o.left);
  if (o.right >= 0 && !o.causal) seen = seen & (j <= i + o.right);
  if (o.chunk > 0) seen = seen & (j.div(o.chunk, "floor") == i.div(o.chunk, "floor"));
  return {at::where(seen, scores, at::full_like(scores, -kInf)), slope};
}

// One sequence: q [time, heads, dim], k, v [kv_time, kv_heads, dim] -> out [time, heads, dim], lse [heads, time]
inline std::tuple<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v, const Options& o) {
  const int64_t heads = q.size(1);
  const Tensor scores = scores_of(by_head(q, heads), by_head(k, heads), o).scores;
  Tensor lse = at::logsumexp(scores, {2});
  if (o.sinks) lse = at::logaddexp(lse, o.sinks->to(at::kDouble).view({-1, 1}));
  const Tensor weights = (scores - lse.unsqueeze(2)).exp().nan_to_num(0);
  return {weights.matmul(by_head(v, heads)).transpose(0, 1).to(q.scalar_type()), lse.to(at::kFloat)};
}

struct Gradients {
  Tensor dq, dk, dv, dsinks;
};

inline Gradients attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& out, const Tensor& lse, const Options& o) {
  const int64_t heads = q.size(1);
  const Tensor qd = by_head(q, heads), kd = by_head(k, heads), vd = by_head(v, heads), dy = by_head(dout, heads);
  const auto [scores, slope] = scores_of(qd, kd, o);
  const Tensor weights = (scores - lse.to(at::kDouble).unsqueeze(2)).exp().nan_to_num(0);
  const Tensor rows = (dy * by_head(out, heads)).sum(2, /*keepdim=*/true);  // [heads, time, 1]
  const Tensor dscores = weights * (dy.matmul(vd.transpose(1, 2)) - rows) * slope * o.scale;
  const auto to_rows = [&](const Tensor& x, const Tensor& like) {  // the heads of a group add up
    const int64_t times = heads / like.size(1);
    return x.view({like.size(1), times, x.size(1), x.size(2)}).sum(1).transpose(0, 1).to(like.scalar_type());
  };
  Tensor dsinks = at::zeros({0}, at::kFloat);
  if (o.sinks) {
    const Tensor weight = (o.sinks->to(at::kDouble).view({-1, 1}) - lse.to(at::kDouble)).exp();  // [heads, time]
    dsinks = -(weight * rows.squeeze(2)).sum(1).to(at::kFloat);
  }
  return {to_rows(dscores.matmul(kd), q), to_rows(dscores.transpose(1, 2).matmul(qd), k),
          to_rows(weights.transpose(1, 2).matmul(dy), v), dsinks};
}

inline std::tuple<Tensor, Tensor> attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const Options& o) {
  std::vector<Tensor> outs, lses;
  for (int64_t b = 0; b < q.size(0); ++b) {
    auto [out, lse] = attend(q[b], k[b], v[b], o);
    outs.push_back(out);
    lses.push_back(lse);
  }
  return {at::stack(outs), at::stack(lses)};
}

inline Gradients attend_rows_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& out, const Tensor& lse, const Options& o) {
  Gradients all{at::zeros_like(q), at::zeros_like(k), at::zeros_like(v), {}};
  for (int64_t b = 0; b < q.size(0); ++b) {
    const Gradients g = attend_backward(dout[b], q[b], k[b], v[b], out[b], lse[b], o);
    all.dq[b].copy_(g.dq), all.dk[b].copy_(g.dk), all.dv[b].copy_(g.dv);
    all.dsinks = all.dsinks.defined() ? all.dsinks + g.dsinks : g.dsinks;
  }
  return all;
}

struct Sequence {
  int64_t q, queries, k, keys;
  static std::vector<Sequence> all(const Tensor& cu_q, const Tensor& cu_k, const OptTensor& used = {}) {
    TORCH_CHECK(cu_q.scalar_type() == at::kInt && cu_k.scalar_type() == at::kInt, "cu_seqlens are int32");
    std::vector<Sequence> found;
    for (int64_t n = 0; n + 1 < cu_q.size(0); ++n) {
      const int64_t q = cu_q[n].item<int>(), k = cu_k[n].item<int>();
      const int64_t keys = used ? (*used)[n].item<int>() : cu_k[n + 1].item<int>() - k;
      found.push_back({q, cu_q[n + 1].item<int>() - q, k, keys});
    }
    return found;
  }
};

inline std::tuple<Tensor, Tensor> attend_packed(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const std::vector<Sequence>& sequences, const Options& o) {
  Tensor out = at::zeros({q.size(0), q.size(1), v.size(2)}, q.options());
  Tensor lse = at::zeros({q.size(1), q.size(0)}, at::kFloat);
  for (const Sequence& s : sequences) {
    const auto [y, l] = attend(q.narrow(0, s.q, s.queries), k.narrow(0, s.k, s.keys), v.narrow(0, s.k, s.keys), o);
    out.narrow(0, s.q, s.queries).copy_(y);
    lse.narrow(1, s.q, s.queries).copy_(l);
  }
  return {out, lse};
}

inline Gradients attend_packed_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Tensor& out, const Tensor& lse, const std::vector<Sequence>& sequences,
                                        const Options& o) {
  Gradients all{at::zeros_like(q), at::zeros_like(k), at::zeros_like(v), {}};
  for (const Sequence& s : sequences) {
    const auto queries = [&](const Tensor& t) { return t.narrow(0, s.q, s.queries); };
    const auto keys = [&](const Tensor& t) { return t.narrow(0, s.k, s.keys); };
    const Gradients g =
        attend_backward(queries(dout), queries(q), keys(k), keys(v), queries(out), lse.narrow(1, s.q, s.queries), o);
    queries(all.dq).copy_(g.dq), keys(all.dk).copy_(g.dk), keys(all.dv).copy_(g.dv);
    all.dsinks = all.dsinks.defined() ? all.dsinks + g.dsinks : g.dsinks;
  }
  return all;
}

// Keys of a fixed size, of which a row holds so many.
inline std::tuple<Tensor, Tensor> attend_cached(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                                const Tensor& lengths, const Options& o) {
  TORCH_CHECK(lengths.scalar_type() == at::kInt, "lengths are int32");
  Tensor out = at::zeros({q.size(0), q.size(1), q.size(2), v_cache.size(3)}, q.options());
  Tensor lse = at::zeros({q.size(0), q.size(2), q.size(1)}, at::kFloat);
  for (int64_t b = 0; b < q.size(0); ++b) {
    const int64_t length = lengths[b].item<int>();
    const auto [y, l] = attend(q[b], k_cache[b].narrow(0, 0, length), v_cache[b].narrow(0, 0, length), o);
    out[b].copy_(y);
    lse[b].copy_(l);
  }
  return {out, lse};
}

}  // namespace
