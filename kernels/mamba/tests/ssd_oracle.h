// State space duality step by step in float64, never in chunks, with autograd's gradients.
#pragma once

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

#include "kernels/common/testing/testing.h"

namespace mamba_test {

using namespace kernels::testing;
using kernels::package;

struct Settings {
  int64_t chunk_size = 256;
  bool softplus = true;
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();
};

// x, dt, A, B, C, D, z, dt_bias, initial_state: undefined where not given. seq_idx apart: it has no gradient.
struct Ssd {
  Tensors in;
  Tensor seq_idx;
  Settings settings;
};
enum Input { kX, kDt, kA, kB, kC, kD, kZ, kBias, kInitial, kInputs };
// For the oracle alone: zeros like dt, added to it where the state decays and not where x comes in.
constexpr int kNothing = kInputs;
inline const char* const kNames[] = {"x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_state"};

// Of each input one that all tokens share, A, D and dt_bias, has a copy a token: [batch, length, ...].
inline bool is_shared(int input) { return input == kA || input == kD || input == kBias; }

// y and final_state, of inputs on the CPU.
inline Tensors recurrence(const Ssd& s, const Tensors& in) {
  const Tensor &x = in[kX], &B = in[kB];
  const int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), dim = x.size(3);
  const int64_t groups = B.size(2), state = B.size(3);
  const auto each_head = [&](const Tensor& t) { return t.repeat_interleave(heads / groups, 1); };  // of [batch, groups]
  Tensor h = in[kInitial].defined() ? in[kInitial] : at::zeros({batch, heads, dim, state}, at::kDouble);
  const Tensor ids = s.seq_idx.defined() ? s.seq_idx.cpu() : Tensor();
  std::vector<int64_t> current(batch, -1);
  Tensors ys;
  for (int64_t t = 0; t < length; ++t) {
    std::vector<double> counts(batch, 1), stays(batch, 1);
    for (int64_t b = 0; ids.defined() && b < batch; ++b) {
      const auto id = ids[b][t].item<int64_t>();
      if (id < 0) counts[b] = 0;
      if (id >= 0 && current[b] >= 0 && id != current[b]) stays[b] = 0;
      if (id >= 0) current[b] = id;
    }
    const Tensor count = at::tensor(counts, at::kDouble).view({batch, 1, 1});
    const Tensor stay = at::tensor(stays, at::kDouble).view({batch, 1, 1, 1});
    Tensor dt = in[kDt].select(1, t);
    if (in[kBias].defined()) dt = dt + in[kBias].select(1, t);
    const auto delta_of = [&](const Tensor& v) {  // [batch, heads]
      return (s.settings.softplus ? at::softplus(v, 1, 20) : v).clamp(s.settings.dt_min, s.settings.dt_max);
    };
    const Tensor delta = delta_of(dt), in_decay = delta_of(dt + in[kNothing].select(1, t));
    const Tensor decay = (in_decay * in[kA].select(1, t)).exp().unsqueeze(-1).unsqueeze(-1);
    const Tensor xt = x.select(1, t), input = (delta.unsqueeze(-1) * xt).unsqueeze(-1);
    const Tensor next = stay * decay * h + input * each_head(B.select(1, t)).unsqueeze(2);
    h = count.unsqueeze(-1) * next + (1 - count.unsqueeze(-1)) * h;
    Tensor y = (h * each_head(in[kC].select(1, t)).unsqueeze(2)).sum(-1);
    if (in[kD].defined()) {
      const Tensor D = in[kD].select(1, t);
      y = y + (D.dim() == 2 ? D.unsqueeze(-1) : D) * xt;
    }
    if (in[kZ].defined()) {
      const Tensor z = in[kZ].select(1, t);
      y = y * z * at::sigmoid(z);
    }
    ys.push_back(count * y);
  }
  return {length > 0 ? at::stack(ys, 1) : x * 0, h};
}

// y, final_state, then the gradients of the inputs, undefined for those not given. terms: the sizes of what a gradient
// is a sum of. That of a shared input has one a token; those of dt and its bias have two: through the decay and through
// x.
struct Want {
  Tensors results, terms;
};
inline Tensor wide_on_cpu(const Tensor& t) { return t.detach().to(at::kCPU, at::kDouble); }
inline Want oracle(const Ssd& s, const Tensor& dy, const Tensor& dfinal) {
  at::AutoGradMode grad(true);
  Tensors leaves;
  for (int i = 0; i < kInputs; ++i) {
    Tensor t = s.in[i].defined() ? wide_on_cpu(s.in[i]) : Tensor();
    if (t.defined() && is_shared(i)) {
      std::vector<int64_t> sizes = {dy.size(0), dy.size(1)};
      sizes.insert(sizes.end(), t.sizes().begin(), t.sizes().end());
      t = t.expand(sizes);
    }
    leaves.push_back(t.defined() ? t.clone().requires_grad_(true) : t);
  }
  leaves.push_back(at::zeros_like(leaves[kDt]).requires_grad_(true));
  Want want{recurrence(s, leaves), Tensors(2)};
  Tensor loss = (want.results[0] * wide_on_cpu(dy)).sum();
  if (dfinal.defined()) loss = loss + (want.results[1] * wide_on_cpu(dfinal)).sum();
  loss.backward();
  for (Tensor& t : want.results) t = t.detach();
  const auto gradient = [&](int i) {
    return !leaves[i].defined() ? Tensor() : leaves[i].grad().defined() ? leaves[i].grad() : at::zeros_like(leaves[i]);
  };
  const Tensor through_decay = gradient(kNothing), of_dt = through_decay.abs() + (gradient(kDt) - through_decay).abs();
  const int64_t shared[] = {0, 1};
  for (int i = 0; i < kInputs; ++i) {
    const Tensor d = gradient(i), sizes = i == kDt || i == kBias ? of_dt : d.defined() ? d.abs() : Tensor();
    want.terms.push_back(!d.defined() ? Tensor() : is_shared(i) ? sizes.sum(shared) : i == kDt ? sizes : Tensor());
    want.results.push_back(d.defined() && is_shared(i) ? d.sum(shared) : d);
  }
  for (Tensors* tensors : {&want.results, &want.terms}) {
    for (Tensor& t : *tensors) t = t.defined() ? t.to(device()) : t;
  }
  return want;
}

inline std::optional<Tensor> maybe(const Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

// The op's y and final_state; of the three forms of one call.
inline Tensors forward(const Ssd& s, const std::string& op = "ssd") {
  const Tensors& i = s.in;
  const Settings& o = s.settings;
  return package().call(op, i[kX], i[kDt], i[kA], i[kB], i[kC], maybe(i[kD]), maybe(i[kZ]), maybe(i[kBias]),
                        maybe(i[kInitial]), maybe(s.seq_idx), o.chunk_size, o.softplus, o.dt_min, o.dt_max);
}
inline Tensors backward(const Ssd& s, const Tensor& dy, const Tensor& dfinal, const Tensor& states) {
  const Tensors& i = s.in;
  const Settings& o = s.settings;
  return package().call("ssd_bwd", dy, maybe(dfinal), i[kX], i[kDt], i[kA], i[kB], i[kC], maybe(i[kD]), maybe(i[kZ]),
                        maybe(i[kBias]), maybe(i[kInitial]), maybe(s.seq_idx), states, o.chunk_size, o.softplus,
                        o.dt_min, o.dt_max);
}
// As oracle() orders them.
inline Tensors run(const Ssd& s, const Tensor& dy, const Tensor& dfinal) {
  const Tensors out = forward(s, "ssd_fwd");
  const Tensors g = backward(s, dy, dfinal, out[2]);
  return {out[0], out[1], g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8]};
}

}  // namespace mamba_test
