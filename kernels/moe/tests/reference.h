// Mixture of experts in float64, expert by expert, with autograd's gradients; and inputs for it.
#pragma once

#include <ATen/Functions.h>

#include <limits>

#include "kernels/common/testing/testing.h"

namespace moe::testing {

using namespace kernels::testing;
using kernels::package;
using MaybeTensor = std::optional<Tensor>;

struct Sizes {
  int64_t tokens = 13, top_k = 3, experts = 7, hidden = 64, inner = 32;
};
struct Options {
  std::string activation = "swiglu";
  bool interleaved = false, transposed = false, scale_input = false, bias = false;
  double alpha = 1.702, limit = 1.5;

  bool gated() const { return !(activation == "relu2" || activation == "silu" || activation.starts_with("gelu")); }
  std::string text() const {
    return activation + (interleaved ? " interleaved" : "") + (transposed ? " transposed" : "") +
           (scale_input ? " scale_input" : "") + (bias ? " bias" : "");
  }
};

inline Tensor activate(const Options& o, const Tensor& h) {
  if (o.activation == "relu2") return at::relu(h).square();
  if (o.activation == "silu") return at::silu(h);
  if (o.activation == "gelu") return at::gelu(h);
  if (o.activation == "gelu_tanh") return at::gelu(h, "tanh");
  const Tensor pairs = o.interleaved ? h.unflatten(-1, {-1, 2}).transpose(-1, -2) : h.unflatten(-1, {2, -1});
  const Tensor g = pairs.select(-2, 0), u = pairs.select(-2, 1);
  if (o.activation == "swiglu") return at::silu(g) * u;
  if (o.activation == "geglu") return at::gelu(g) * u;
  if (o.activation == "geglu_tanh") return at::gelu(g, "tanh") * u;
  if (o.activation == "reglu") return at::relu(g) * u;
  const Tensor c = g.clamp_max(o.limit), v = u.clamp(-o.limit, o.limit);
  return o.activation == "swiglu_oai" ? (v + 1) * (c * at::sigmoid(o.alpha * c)) : at::silu(c) * v;
}

struct Inputs {
  Options o;
  Tensor x, index, weights, w_up, w_down;
  MaybeTensor b_up, b_down;

  Tensors tensors() const {
    Tensors all{x, weights, w_up, w_down};
    if (b_up) all.push_back(*b_up), all.push_back(*b_down);
    return all;
  }
  template <class... More>
  Tensors call(const std::string& op, const More&... more) const {
    return package().call(op, x, index, weights, w_up, b_up, w_down, b_down, more..., o.activation, o.alpha, o.limit,
                          o.interleaved, o.transposed, o.scale_input);
  }
  Tensors forward() const { return call("moe_experts"); }
  Tensors train() const { return call("moe_experts_train"); }
  Tensors backward(const Tensor& dy, const Tensors& trained, bool weight_grads = true,
                   const std::string& op = "moe_experts_bwd") const {
    return package().call(op, dy, x, index, weights, w_up, b_up, w_down, b_down, trained[1], trained[2], trained[3],
                          trained[4], o.activation, o.alpha, o.limit, o.interleaved, o.transposed, o.scale_input,
                          weight_grads);
  }
};

inline Tensor laid_out(const Tensor& w, bool transposed) { return transposed ? w.transpose(1, 2).contiguous() : w; }

inline Inputs inputs(const Sizes& s, const Options& o, const Tensor& index, at::ScalarType dtype,
                     at::ScalarType score_dtype = at::kFloat) {
  const int64_t n = o.gated() ? 2 * s.inner : s.inner;
  Inputs in{
      .o = o,
      .x = random_tensor({s.tokens, s.hidden}, dtype),
      .index = index.to(device()),
      .weights = random_tensor({s.tokens, s.top_k}, at::kFloat).sigmoid().to(score_dtype),
      .w_up = laid_out(random_tensor({s.experts, n, s.hidden}, dtype, 1.5 / std::sqrt(double(s.hidden))), o.transposed),
      .w_down =
          laid_out(random_tensor({s.experts, s.hidden, s.inner}, dtype, 1 / std::sqrt(double(s.inner))), o.transposed),
      .b_up = std::nullopt,
      .b_down = std::nullopt};
  if (o.bias) in.b_up = random_tensor({s.experts, n}, dtype), in.b_down = random_tensor({s.experts, s.hidden}, dtype);
  return in;
}

// What is kept as h is rounded before the activation reads it: near a clamp's limit that decides.
inline Tensor rounded(const Tensor& t, at::ScalarType dtype) { return t + (t.to(dtype).to(at::kDouble) - t).detach(); }

// y, then the gradients of x, weights, w_up, w_down and the biases.
inline Tensors reference_of(const Inputs& in, const Tensor& dy) {
  const Options& o = in.o;
  const at::ScalarType dtype = in.x.scalar_type();
  return reference(
      [&](const Tensors& t) {
        Tensor y = at::zeros_like(t[0]);
        for (int64_t e = 0; e < in.w_up.size(0); ++e) {
          const Tensor at_expert = (in.index == e).nonzero(), token = at_expert.select(1, 0);
          if (token.size(0) == 0) continue;
          const Tensor s = t[1].flatten().index_select(0, token * t[1].size(1) + at_expert.select(1, 1)).unsqueeze(1);
          const auto weight = [&](const Tensor& w) { return o.transposed ? w[e] : w[e].t(); };
          Tensor h = t[0].index_select(0, token).mm(weight(t[2]));
          if (o.scale_input) h = rounded(h, dtype) * s;
          if (o.bias) h = h + t[4][e];
          if (!o.scale_input) h = rounded(h, dtype);
          Tensor rows = activate(o, h).mm(weight(t[3]));
          if (o.bias) rows = rows + t[5][e];
          y = y.index_add(0, token, o.scale_input ? rows : s * rows);
        }
        return Tensors{y};
      },
      in.tensors(), {dy});
}

// Roundings on the way to a result: of h, A, Y and y; of dA', A' or dh, rows of dx and dx.
constexpr double kRoundings = 4;

// a b, by the root of the sum of its terms' squares.
inline Tensor size_of_product(const Tensor& a, const Tensor& b) { return a.square().mm(b.square()).sqrt(); }

// As reference_of: for each value sqrt(sum of t^2) of the terms t that it is a sum of. Each term is off by a few
// roundings of its own, a share u of it each, up or down: sums of such errors are of size u sqrt(sum of t^2), not
// u |sum of t|, which is smaller where terms cancel. One value, or a few, may do so.
inline Tensors sizes_of(const Inputs& in, const Tensor& dy) {
  const Options& o = in.o;
  const at::AutoGradMode grad(true);
  Tensors t, sizes;
  for (const Tensor& each : in.tensors()) t.push_back(each.to(at::kDouble));
  sizes.push_back(at::zeros_like(t[0]));
  for (const Tensor& each : t) sizes.push_back(at::zeros_like(each));
  const auto add = [](Tensor sum, const Tensor& token, const Tensor& size) { sum.index_add_(0, token, size.square()); };
  for (int64_t e = 0; e < in.w_up.size(0); ++e) {
    const Tensor at_expert = (in.index == e).nonzero(), token = at_expert.select(1, 0);
    if (token.size(0) == 0) continue;
    const Tensor slot = token * t[1].size(1) + at_expert.select(1, 1);
    const Tensor s = t[1].flatten().index_select(0, slot).unsqueeze(1), x = t[0].index_select(0, token);
    const Tensor dy_rows = dy.to(at::kDouble).index_select(0, token), dout = o.scale_input ? dy_rows : s * dy_rows;
    const auto laid = [&](const Tensor& w) { return o.transposed ? w : w.t(); };
    const Tensor up = laid(t[2][e]), down = laid(t[3][e]), product = x.mm(up);
    Tensor h = o.scale_input ? product * s : product;
    if (o.bias) h = h + t[4][e];
    h = h.detach().requires_grad_(true);
    const Tensor a = activate(o, h);
    a.backward(dout.mm(down.t()));
    const Tensor dh = h.grad(), act = a.detach(), dproduct = o.scale_input ? dh * s : dh;
    Tensor rows = act.mm(down);
    if (o.bias) rows = rows + t[5][e];
    add(sizes[0], token, size_of_product(o.scale_input ? act : s * act, down));
    add(sizes[1], token, size_of_product(dproduct, up.t()));
    sizes[2].flatten().index_copy_(0, slot, (o.scale_input ? dh * product : dy_rows * rows).square().sum(1));
    sizes[3][e] = laid(size_of_product(x.t(), dproduct)).square();
    sizes[4][e] = laid(size_of_product(act.t(), dout)).square();
    if (o.bias) sizes[5][e] = dh.square().sum(0), sizes[6][e] = dout.square().sum(0);
  }
  for (Tensor& size : sizes) size = size.sqrt();
  return sizes;
}

inline void expect_right(const Inputs& in, const std::string& what) {
  const at::ScalarType dtype = in.x.scalar_type();
  const Tensor dy = random_tensor(in.x.sizes(), dtype);
  const Tensors want = reference_of(in, dy), trained = in.train(), got = in.backward(dy, trained);
  const Tensors sizes = sizes_of(in, dy);
  const auto close = [&](const Tensor& result, size_t i, const char* name) {
    const double wanted = want[i].norm().item<double>(), size = sizes[i].norm().item<double>();
    const double cancels = wanted > 0 ? std::max(1.0, size / wanted) : 1;
    expect_close(result, want[i], kRoundings * tolerance(dtype) * cancels, what + ", " + name);
  };
  expect_equal(in.forward()[0], trained[0], what + ", y of both forwards");
  EXPECT_EQ(got[1].scalar_type(), in.weights.scalar_type());
  close(trained[0], 0, "y");
  close(got[0], 1, "dx");
  close(got[1], 2, "dweights");
  close(got[2], 3, "dw_up");
  close(got[4], 4, "dw_down");
  EXPECT_EQ(got[3].numel(), in.b_up ? in.b_up->numel() : 0);
  if (!in.b_up) return;
  close(got[3], 5, "db_up");
  close(got[5], 6, "db_down");
}

// Experts at random, but none goes to the last one, the first token names one of them twice, and two assignments are
// somebody else's.
inline Tensor some_routing(const Sizes& s) {
  Tensor index = at::randint(std::max<int64_t>(s.experts - 1, 1), {s.tokens, s.top_k}, generator(), at::kLong);
  if (s.tokens > 2 && s.top_k > 1) {
    index[0][1] = index[0][0];
    index[1][0] = s.experts;
    index[2][1] = -1;
  }
  return index;
}

}  // namespace moe::testing
