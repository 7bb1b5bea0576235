// The mamba package against torch's eager way, at the sizes of mamba-130m (1536 channels of 16 states, 4 taps) and
// mamba2-130m (24 heads of 64, state 128). Tokens lie as transformers hands them over: channels beside each other.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unbind.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/bench.h"

using at::Tensor;
using namespace kernels::bench;
using kernels::package;

namespace {

using Tensors = std::vector<Tensor>;
using Formula = std::function<Tensor(const Tensors&)>;

// One op, forward and backward, against a formula of torch's. ours_bwd: all gradients, that of inputs[0] first.
struct Pair {
  std::string op, shape;
  Tensors inputs;
  Tensor dy;
  Formula eager, ours;
  std::function<Tensor()> ours_bwd;
  double target, target_bwd;
};

Tensors as(const Tensors& in, at::ScalarType dtype) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(t.to(dtype));
  return out;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors) bytes += t.numel() * t.element_size();
  return bytes;
}

// The graph of one forward, gone through again each time.
std::function<Tensor()> graph(const Formula& formula, const Tensors& inputs, const Tensor& dy) {
  at::AutoGradMode grad(true);
  Tensors leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.detach().requires_grad_(true));
  const Tensor y = formula(leaves);
  return [leaves, y, dy] {
    c10::InferenceMode off(false);
    for (const Tensor& leaf : leaves) leaf.mutable_grad().reset();
    y.backward(dy, /*retain_graph=*/true);
    return leaves[0].grad();
  };
}

void run(Bench& bench, const Pair& p) {
  const at::ScalarType dtype = p.inputs[0].scalar_type();
  Case c{.op = p.op, .shape = p.shape, .dtype = short_name(dtype), .peer = "torch eager"};
  c.tolerance = dtype == at::kFloat ? 1e-5 : 1.0 / 128;
  c.bytes = bytes_of(p.inputs) + bytes_of({p.dy}), c.target = p.target;
  c.ours = [&] { p.ours(p.inputs); };
  c.theirs = [&] { p.eager(p.inputs); };
  c.error = [&] { return relative_l2(p.ours(p.inputs), p.eager(as(p.inputs, at::kDouble))); };
  bench.run(c);
  c.op += "_bwd", c.bytes = 2 * bytes_of(p.inputs) + bytes_of({p.dy}), c.target = p.target_bwd;
  if (!p.ours_bwd || !bench.wants(c.op)) return;
  const auto theirs = graph(p.eager, p.inputs, p.dy);
  c.ours = [&] { p.ours_bwd(); };
  c.theirs = [&] { theirs(); };
  c.error = [&] {
    return relative_l2(p.ours_bwd(), graph(p.eager, as(p.inputs, at::kDouble), p.dy.to(at::kDouble))());
  };
  bench.run(c);
}

std::string sizes(std::initializer_list<std::pair<const char*, int64_t>> all) {
  std::string text;
  for (const auto& [letter, size] : all) text += (text.empty() ? "" : " ") + (letter + std::to_string(size));
  return text;
}
const std::optional<Tensor> kNone;

// ---- the convolution

void conv(Bench& bench, int64_t length, at::ScalarType dtype) {
  const int64_t channels = 1536, width = 4;
  const Tensor x = at::randn({1, length, channels}, dtype).transpose(1, 2),
               dy = at::randn({1, length, channels}, dtype).transpose(1, 2);
  const Tensor weight = at::randn({channels, width}, dtype), bias = at::randn({channels}, dtype);
  run(bench, {.op = "causal_conv1d",
              .shape = sizes({{"D", channels}, {"L", length}}),
              .inputs = {x, weight, bias},
              .dy = dy,
              .eager =
                  [=](const Tensors& in) {
                    const Tensor y = at::conv1d(in[0], in[1].unsqueeze(1), in[2], 1, width - 1, 1, channels);
                    return at::silu(y.narrow(2, 0, length));
                  },
              .ours =
                  [](const Tensors& in) {
                    return package().call("causal_conv1d", in[0], in[1], std::optional(in[2]), kNone, kNone, "silu")[0];
                  },
              .ours_bwd =
                  [=] {
                    return package().call("causal_conv1d_bwd", dy, x, weight, std::optional(bias), kNone, kNone,
                                          "silu")[0];
                  },
              .target = 3,
              .target_bwd = 3});
}

void conv_update(Bench& bench, at::ScalarType dtype) {
  const int64_t channels = 1536, width = 4;
  const Tensor x = at::randn({1, channels, 1}, dtype), state = at::randn({1, channels, width}, dtype);
  const Tensor weight = at::randn({channels, width}, dtype), bias = at::randn({channels}, dtype);
  const auto eager = [=](const Tensor& before, const Tensor& new_x) {
    before.copy_(at::cat({before.narrow(2, 1, width - 1), new_x}, 2));
    return at::silu((before * weight.to(before.scalar_type())).sum(-1) + bias.to(before.scalar_type()));
  };
  Case c{.op = "causal_conv1d_update",
         .shape = sizes({{"D", channels}}),
         .dtype = short_name(dtype),
         .peer = "torch eager"};
  c.tolerance = dtype == at::kFloat ? 1e-5 : 1.0 / 128, c.target = 3;
  c.bytes = bytes_of({x, x, weight, bias, state, state});
  const auto ours = [=](const Tensor& before) {
    return package().call("causal_conv1d_update", x, before, weight, std::optional(bias), kNone, kNone, "silu")[0];
  };
  c.ours = [=] { ours(state); };
  c.theirs = [=] { eager(state, x); };
  c.error = [=] {
    const Tensor wide = state.to(at::kDouble).clone();
    return relative_l2(ours(state.clone()).squeeze(2), eager(wide, x.to(at::kDouble)));
  };
  bench.run(c);
}

// ---- Mamba-1

// Step by step as transformers has it without a kernel: u, delta, A, B, C, D, z, the states in float32.
Tensor scan_by_steps(const Tensors& given) {
  const at::ScalarType type = given[0].scalar_type();
  const Tensors in = as(given, type == at::kDouble ? type : at::kFloat);
  const Tensor delta = at::softplus(in[1]);  // [b, d, l]
  const Tensor decay = (delta.unsqueeze(-1) * in[2].view({1, in[2].size(0), 1, -1})).exp();
  const Tensor input = (delta * in[0]).unsqueeze(-1) * in[3].transpose(1, 2).unsqueeze(1);  // [b, d, l, n]
  // unbound: the gradient of a select is a tensor as large as the whole, at every step
  const Tensors decays = at::unbind(decay, 2), inputs = at::unbind(input, 2), C = at::unbind(in[4].unsqueeze(-1), 2);
  Tensor h = at::zeros_like(inputs[0]);
  Tensors ys;
  for (size_t t = 0; t < inputs.size(); ++t) {
    h = decays[t] * h + inputs[t];
    ys.push_back(at::matmul(h, C[t]).squeeze(-1));
  }
  return ((at::stack(ys, -1) + in[0] * in[5].unsqueeze(-1)) * at::silu(in[6])).to(type);
}

void scan(Bench& bench, int64_t length, at::ScalarType dtype) {
  const int64_t channels = 1536, states = 16;
  const auto channel_last = [&](int64_t c) { return at::randn({1, length, c}, dtype).transpose(1, 2); };
  const Tensor coefficients = channel_last(48 + 2 * states);  // x_proj's result: dt's part, B, C
  const Tensors in = {channel_last(channels),
                      (at::randn({1, channels, length}) - 3).to(dtype),
                      -at::rand({channels, states}, at::kFloat) * 16,
                      coefficients.narrow(1, 48, states),
                      coefficients.narrow(1, 48 + states, states),
                      at::randn({channels}, at::kFloat),
                      channel_last(channels)};
  const Tensor dy = channel_last(channels);
  const auto forward = [=](const std::string& op, const Tensors& i) {
    return package().call(op, i[0], i[1], i[2], i[3], i[4], std::optional(i[5]), std::optional(i[6]), kNone, kNone,
                          kNone, true);
  };
  const Tensor checkpoints = forward("selective_scan_fwd", in)[2];
  run(bench, {.op = "selective_scan",
              .shape = sizes({{"D", channels}, {"L", length}, {"N", states}}),
              .inputs = in,
              .dy = dy,
              .eager = scan_by_steps,
              .ours = [=](const Tensors& i) { return forward("selective_scan", i)[0]; },
              .ours_bwd =
                  [=] {
                    return package().call("selective_scan_bwd", dy, kNone, in[0], in[1], in[2], in[3], in[4],
                                          std::optional(in[5]), std::optional(in[6]), kNone, kNone, kNone, checkpoints,
                                          true)[0];
                  },
              .target = 20,
              .target_bwd = 10});
}

// ---- Mamba-2

// In chunks of 256, as products of matrices in float32 as transformers has them: x, dt, A, B, C, D with one group.
Tensor ssd_in_chunks(const Tensors& given) {
  const at::ScalarType type = given[0].scalar_type();
  const Tensors in = as(given, type == at::kDouble ? type : at::kFloat);
  const int64_t batch = in[0].size(0), length = in[0].size(1), heads = in[0].size(2), dim = in[0].size(3);
  const int64_t state = in[3].size(3), chunk = 256, chunks = length / chunk;
  const Tensor delta = at::softplus(in[1]);  // [b, l, h]
  const Tensor rates = (delta * in[2]).view({batch, chunks, chunk, heads}).permute({0, 1, 3, 2}).cumsum(-1);
  const Tensor x = (in[0] * delta.unsqueeze(-1)).view({batch, chunks, chunk, heads, dim}).permute({0, 1, 3, 2, 4});
  const Tensor B = in[3].reshape({batch, chunks, 1, chunk, state}), C = in[4].reshape({batch, chunks, 1, chunk, state});
  const Tensor below = at::ones({chunk, chunk}, at::kBool).tril();
  const Tensor decay =
      (rates.unsqueeze(-1) - rates.unsqueeze(-2)).masked_fill(~below, -std::numeric_limits<double>::infinity()).exp();
  Tensor y = at::matmul(at::matmul(C, B.transpose(-1, -2)) * decay, x);
  const Tensor leave = (rates.narrow(3, chunk - 1, 1) - rates).exp().unsqueeze(-1);
  const Tensor inner = at::matmul(B.transpose(-1, -2), x * leave);  // [b, c, h, n, p]
  Tensor h = at::zeros_like(inner.select(1, 0));
  Tensors entering;
  for (int64_t c = 0; c < chunks; ++c) {
    entering.push_back(h);
    h = h * rates.select(1, c).select(2, chunk - 1).exp().unsqueeze(-1).unsqueeze(-1) + inner.select(1, c);
  }
  y = y + at::matmul(C, at::stack(entering, 1)) * rates.exp().unsqueeze(-1);
  return (y.permute({0, 1, 3, 2, 4}).reshape(in[0].sizes()) + in[0] * in[5].unsqueeze(-1)).to(type);
}

void ssd(Bench& bench, int64_t batch, int64_t length, at::ScalarType dtype) {
  const int64_t heads = 24, dim = 64, state = 128;
  const Tensor all = at::randn({batch, length, heads * dim + 2 * state}, dtype);  // one convolution's result
  const Tensors in = {all.narrow(2, 0, heads * dim).view({batch, length, heads, dim}),
                      (at::randn({batch, length, heads}) - 3).to(dtype),
                      -(at::rand({heads}, at::kFloat) * 2.8).exp(),
                      all.narrow(2, heads * dim, state).view({batch, length, 1, state}),
                      all.narrow(2, heads * dim + state, state).view({batch, length, 1, state}),
                      at::randn({heads}, at::kFloat)};
  const Tensor dy = at::randn({batch, length, heads, dim}, dtype);
  const double infinity = std::numeric_limits<double>::infinity();
  const auto forward = [=](const std::string& op, const Tensors& i) {
    return package().call(op, i[0], i[1], i[2], i[3], i[4], std::optional(i[5]), kNone, kNone, kNone, kNone, 256, true,
                          0.0, infinity);
  };
  const Tensor states = forward("ssd_fwd", in)[2];
  run(bench, {.op = "ssd",
              .shape = sizes({{"B", batch}, {"L", length}, {"H", heads}, {"P", dim}, {"N", state}}),
              .inputs = in,
              .dy = dy,
              .eager = ssd_in_chunks,
              .ours = [=](const Tensors& i) { return forward("ssd", i)[0]; },
              .ours_bwd =
                  [=] {
                    return package().call("ssd_bwd", dy, kNone, in[0], in[1], in[2], in[3], in[4], std::optional(in[5]),
                                          kNone, kNone, kNone, kNone, states, 256, true, 0.0, infinity)[0];
                  },
              .target = 10,
              .target_bwd = 10});
}

// A step of generation, its arguments expanded as transformers hands them over: one dt, A, D and bias a head.
void state_update(Bench& bench, int64_t batch, at::ScalarType dtype) {
  const int64_t heads = 24, dim = 64, states = 128;
  const Tensor state = at::randn({batch, heads, dim, states}), x = at::randn({batch, heads, dim}, dtype);
  const Tensor dt = (at::randn({batch, heads, 1}) - 3).to(dtype).expand({batch, heads, dim});
  const Tensor A = -(at::rand({heads, 1, 1}, at::kFloat) * 2.8).exp().expand({heads, dim, states});
  const Tensor B = at::randn({batch, 1, states}, dtype), C = at::randn({batch, 1, states}, dtype);
  const Tensor D = at::randn({heads, 1}, at::kFloat).expand({heads, dim});
  const auto eager = [=](const Tensor& h, const Tensor& step, const Tensor& in, const Tensor& b, const Tensor& c) {
    const auto wide = h.scalar_type();
    const Tensor delta = at::softplus(step).unsqueeze(-1);
    const Tensor decay = (delta.to(wide) * A.to(wide)).exp();
    h.copy_(h * decay + delta * b.unsqueeze(2) * in.unsqueeze(-1));
    return at::matmul(h, c.to(wide).unsqueeze(-1)).squeeze(-1) + in * D.to(wide);
  };
  const auto ours = [=](const Tensor& h) {
    return package().call("selective_state_update", h, x, dt, A, B, C, std::optional(D), kNone, kNone, kNone, true)[0];
  };
  Case c{.op = "selective_state_update",
         .shape = sizes({{"B", batch}, {"H", heads}, {"P", dim}, {"N", states}}),
         .dtype = short_name(dtype),
         .peer = "torch eager"};
  c.tolerance = dtype == at::kFloat ? 1e-5 : 1.0 / 128, c.target = 3;
  c.bytes = bytes_of({state, state, x, x, B, C});
  c.ours = [=] { ours(state); };
  c.theirs = [=] { eager(state, dt, x, B, C); };
  c.error = [=] {
    const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
    return relative_l2(ours(state.clone()), eager(wide(state), wide(dt), wide(x), wide(B), wide(C)));
  };
  bench.run(c);
}

void gated_norm(Bench& bench, int64_t rows, at::ScalarType dtype) {
  const int64_t cols = 1536;
  const double eps = 1e-5;
  const Tensor projected = at::randn({rows, cols + 1792}, dtype);  // the gate is a part of the input projection
  const Tensors in = {at::randn({rows, cols}, dtype), projected.narrow(1, 0, cols), at::randn({cols}, dtype)};
  const Tensor dy = at::randn({rows, cols}, dtype);
  const Tensor rstd = package().call("gated_rms_norm_fwd", in[0], in[1], in[2], eps, cols, false)[1];
  run(bench,
      {.op = "gated_rms_norm",
       .shape = std::to_string(rows) + "x" + std::to_string(cols),
       .inputs = in,
       .dy = dy,
       .eager =
           [=](const Tensors& i) {
             const auto type = i[0].scalar_type(), wide = type == at::kDouble ? at::kDouble : at::kFloat;
             Tensor u = i[0].to(wide) * at::silu(i[1].to(wide));
             u = u * at::rsqrt(u.square().mean(-1, true) + eps);
             return i[2] * u.to(type);
           },
       .ours =
           [=](const Tensors& i) { return package().call("gated_rms_norm", i[0], i[1], i[2], eps, cols, false)[0]; },
       .ours_bwd = [=] { return package().call("gated_rms_norm_bwd", dy, in[0], in[1], in[2], rstd, cols, false)[0]; },
       .target = 3,
       .target_bwd = 3});
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc, argv);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    conv(bench, 512, dtype);
    conv_update(bench, dtype);
    scan(bench, 512, dtype);
    ssd(bench, 1, 512, dtype);
    ssd(bench, 4, 2048, dtype);
    state_update(bench, 1, dtype);
    gated_norm(bench, 512, dtype);
    gated_norm(bench, 8192, dtype);
  }
  return bench.finish();
}
