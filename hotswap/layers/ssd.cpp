// ssd/1 in plain ATen: chunk after chunk, products of matrices within one, the state between them; and
// gated_rms_norm/1.
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hotswap/layers/chunk_decays.h"
#include "hotswap/layers/mamba.h"
#include "hotswap/layers/whole_vectors.h"
#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

// [batch, time, groups, state] -> [batch, heads, time, state]
Tensor of_heads(const Tensor& t, int64_t heads) {
  return wide(t).transpose(1, 2).repeat_interleave(heads / t.size(2), 1);
}

}  // namespace

std::tuple<Tensor, Tensor> stock::ssd(const SsdInputs& in) {
  const int64_t batch = in.x.size(0), time = in.x.size(1), heads = in.x.size(2), head_dim = in.x.size(3);
  Tensor dt = in.dt_bias ? at::add(in.dt, in.dt_bias->to(in.dt.scalar_type())) : in.dt;
  if (in.dt_softplus) dt = row_softplus(dt);
  dt = wide(at::clamp(dt, in.dt_min, in.dt_max));

  const Tensor x = wide(in.x).transpose(1, 2);                                        // [batch, heads, time, head_dim]
  const Tensor scaled = at::mul(x, dt.transpose(1, 2).unsqueeze(-1));                 // dt x
  const Tensor decays = at::mul(dt.transpose(1, 2), wide(in.A).view({1, heads, 1}));  // [batch, heads, time]
  const Tensor B = of_heads(in.B, heads), C = of_heads(in.C, heads);                  // [batch, heads, time, state]
  Tensor h = in.initial_state ? wide(*in.initial_state) : at::zeros({batch, heads, head_dim, B.size(3)}, x.options());
  std::vector<Tensor> outputs;
  for (int64_t from = 0; from < time; from += in.chunk_size) {
    const int64_t count = std::min(in.chunk_size, time - from);
    const auto of_chunk = [&](const Tensor& t) { return t.narrow(2, from, count); };
    const Tensor sums = at::cumsum(of_chunk(decays), 2).unsqueeze(-1);
    const auto [pairs, entering, leaving, through] = chunk_decays(sums, in.seq_idx, from);
    const Tensor b = of_chunk(B), c = of_chunk(C), dtx = of_chunk(scaled);
    const Tensor within = at::matmul(at::mul(at::matmul(c, b.transpose(2, 3)), pairs), dtx);
    outputs.push_back(at::add(within, at::mul(at::matmul(c, h.transpose(2, 3)), entering)));
    h = at::add(at::mul(h, through), at::matmul(dtx.transpose(2, 3), at::mul(b, leaving)));
  }
  Tensor y = at::cat(outputs, 2);  // [batch, heads, time, head_dim]
  if (in.D) y = at::add(y, at::mul(x, wide(*in.D).view({1, heads, 1, 1})));
  y = y.transpose(1, 2);
  if (in.z) y = at::mul(y, row_silu(wide(*in.z)));
  return {y, h};
}

// What transformers' scan gives comes in float32, and is not rounded before the weight then.
Tensor stock::gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, double eps, int64_t group_size,
                             bool norm_before_gate) {
  const Tensor gate = row_silu(wide(z));
  const Tensor u = norm_before_gate ? wide(x) : at::mul(wide(x), gate);
  const Tensor groups = u.unflatten(-1, {-1, group_size});
  const Tensor rstd = at::rsqrt(at::add(groups.pow(2).mean(-1, /*keepdim=*/true), eps));
  const Tensor y = at::mul(weight, at::mul(groups, rstd).flatten(-2).to(x.scalar_type()));
  return (norm_before_gate ? at::mul(y, gate) : y).to(z.scalar_type());
}

}  // namespace hotswap
