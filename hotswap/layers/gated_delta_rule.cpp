// Chunk after chunk. Within one, what tokens correct depends on what those before them corrected: a triangular system
// of equations, solved for all of them at once.
#include "hotswap/layers/gated_delta_rule.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "hotswap/layers/chunk_decays.h"
#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

constexpr double kLengthEps = 1e-6;

// The inputs with heads first, in float32.
struct DeltaHeads {
  Tensor q, k, v;  // [batch, heads, time, dim]: q and k of length 1, q scaled
  Tensor g, beta;  // [batch, heads, time, 1]
};

Tensor unit_heads(const Tensor& t, int64_t heads) {
  const Tensor x = wide(t).transpose(1, 2);
  const Tensor unit = at::mul(x, at::rsqrt(at::add(at::mul(x, x).sum(-1, /*keepdim=*/true), kLengthEps)));
  return heads == t.size(2) ? unit : unit.repeat_interleave(heads / t.size(2), 1);
}

DeltaHeads delta_heads(const GatedDeltaInputs& in) {
  const int64_t heads = in.v.size(2);
  const auto column = [](const Tensor& t) { return wide(t).transpose(1, 2).unsqueeze(-1); };
  return {.q = at::mul(unit_heads(in.q, heads), std::pow(static_cast<double>(in.q.size(-1)), -0.5)),
          .k = unit_heads(in.k, heads),
          .v = wide(in.v).transpose(1, 2),
          .g = column(in.g),
          .beta = column(in.beta)};
}

}  // namespace

std::tuple<Tensor, Tensor> gated_delta_rule(const GatedDeltaInputs& in) {
  const int64_t batch = in.v.size(0), time = in.v.size(1), heads = in.v.size(2);
  const DeltaHeads all = delta_heads(in);
  Tensor S = in.initial_state ? wide(*in.initial_state)
                              : at::zeros({batch, heads, in.k.size(-1), in.v.size(-1)}, all.v.options());
  std::vector<Tensor> outputs;
  for (int64_t from = 0; from < time; from += in.chunk_size) {
    const int64_t count = std::min(in.chunk_size, time - from);
    const auto of_chunk = [&](const Tensor& t) { return t.narrow(2, from, count); };
    const Tensor q = of_chunk(all.q), k = of_chunk(all.k), beta = of_chunk(all.beta);
    const auto [pairs, entering, leaving, through] = chunk_decays(at::cumsum(of_chunk(all.g), 2), in.seq_idx, from);
    // What each token adds at its key, if those before it had added nothing; then with what they add.
    const Tensor lacking = at::mul(at::sub(of_chunk(all.v), at::mul(at::matmul(k, S), entering)), beta);
    const Tensor system = at::mul(at::matmul(at::mul(k, beta), k.transpose(2, 3)), pairs);  // its diagonal counts as 1
    const Tensor added = at::linalg_solve_triangular(system, lacking, /*upper=*/false, /*left=*/true,
                                                     /*unitriangular=*/true);  // [batch, heads, count, value_dim]
    const Tensor within = at::matmul(at::mul(at::matmul(q, k.transpose(2, 3)), pairs), added);
    outputs.push_back(at::add(within, at::mul(at::matmul(q, S), entering)));
    S = at::add(at::mul(S, through), at::matmul(at::mul(k, leaving).transpose(2, 3), added));
  }
  return {at::cat(outputs, 2).transpose(1, 2).to(in.v.scalar_type()), S};
}

Tensor gated_delta_step(const GatedDeltaInputs& in, const Tensor& state) {
  const DeltaHeads token = delta_heads(in);
  state.mul_(at::exp(token.g));
  const Tensor added =
      at::mul(at::sub(token.v, at::matmul(token.k, state)), token.beta);  // [batch, heads, 1, value_dim]
  state.add_(at::matmul(token.k.transpose(2, 3), added));
  return at::matmul(token.q, state).transpose(1, 2).to(in.v.scalar_type());
}

}  // namespace hotswap
