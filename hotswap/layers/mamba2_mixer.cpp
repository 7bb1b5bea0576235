#include "hotswap/layers/mamba2_mixer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/silu.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/layers/multiplied.h"
#include "hotswap/layers/whole_vectors.h"
#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

int64_t conv_channels(const MambaOptions& o) { return o.channels + 2 * o.groups * o.state; }

std::vector<std::pair<int64_t, double>> projected_parts(const MambaOptions& o) {
  const auto& [gate, x, B, C, dt] = o.multipliers;
  const int64_t shared = o.groups * o.state;
  return {{o.channels, gate}, {o.channels, x}, {shared, B}, {shared, C}, {o.heads, dt}};
}

}  // namespace

Tensor PartMultipliers::times(const Tensor& projected) const {
  if (std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part.second == 1; })) return projected;
  Tensor row;
  {
    const std::lock_guard lock(mutex_);
    if (!row_.defined() || row_.scalar_type() != projected.scalar_type() || row_.device() != projected.device()) {
      const c10::InferenceMode off(false);  // or only inference mode could multiply by it
      std::vector<Tensor> rows;
      for (const auto& [width, by] : parts_) rows.push_back(at::full({width}, by, projected.options()));
      row_ = at::cat(rows);
    }
    row = row_;
  }
  return at::mul(projected, row);
}

Mamba2Mixer::Mamba2Mixer(const MambaOptions& o)
    : options_(o),
      in_proj_(o.hidden_size, o.channels + conv_channels(o) + o.heads, o.bias),
      out_proj_(o.channels, o.hidden_size, o.output_bias.value_or(o.bias), output_init(o.time_step, o.channels)),
      conv1d_(conv_channels(o), o.conv_width, o.conv_bias, o.time_step.is_special),
      multipliers_(projected_parts(o)) {
  own("dt_bias", dt_bias_, {o.heads}, o.time_step.draws_bias ? inverse_softplus_of(o.time_step) : Init::constant(1));
  own("A_log", A_log_, {o.heads}, log_of_counts());
  own("D", D_, {o.heads}, Init::constant(1));
  own("conv1d", conv1d_);
  own("in_proj", in_proj_);
  if (o.gated_norm) {
    norm_ = std::make_unique<GatedRMSNorm>(o.channels, o.channels / o.groups, o.gated_norm_eps, o.norm_before_gate);
    own("norm", *norm_);
  }
  own("out_proj", out_proj_);
}

Tensor Mamba2Mixer::scanned(const Projected& in, const ForwardContext& context, const Tensor& state) const {
  const MambaOptions& o = options_;
  const int64_t batch = in.xBC.size(0), time = in.xBC.size(1), shared = o.groups * o.state;
  // A kernel gates what it writes; the stock scan gives float32, and the gate is the SiLU of its own dtype.
  const bool gates = !norm_ && scan_.bound();
  const auto [scan, last_state] =
      scan_({.x = in.xBC.narrow(2, 0, o.channels).view({batch, time, o.heads, o.head_dim}),
             .dt = in.dt,
             .A = at::neg(at::exp(wide(A_log_))),
             .B = in.xBC.narrow(2, o.channels, shared).view({batch, time, o.groups, o.state}),
             .C = in.xBC.narrow(2, o.channels + shared, shared).view({batch, time, o.groups, o.state}),
             .D = D_,
             .z = gates ? OptionalTensor(in.gate.view({batch, time, o.heads, o.head_dim})) : std::nullopt,
             .dt_bias = dt_bias_,
             .initial_state = initial_state(context, state),
             .seq_idx = if_defined(context.seq_idx),
             .chunk_size = o.chunk_size,
             .dt_min = o.dt_min,
             .dt_max = o.dt_max});
  if (state.defined()) state.copy_(last_state);
  const Tensor y = scan.reshape({batch, time, o.channels});
  if (norm_) return norm_->forward(y, in.gate);
  return gates ? y.to(in.gate.scalar_type()) : at::mul(y, row_silu(in.gate)).to(in.gate.scalar_type());
}

Tensor Mamba2Mixer::stepped(const Projected& in, const Tensor& state) const {
  const MambaOptions& o = options_;
  const int64_t batch = in.xBC.size(0), shared = o.groups * o.state;
  const Tensor token = in.xBC.select(1, 0);  // [batch, conv_channels]
  const auto of_heads = [&](const Tensor& t) { return t.unsqueeze(-1).expand({-1, o.head_dim}); };  // [heads, head_dim]
  const Tensor y = update_({.state = state,
                            .x = token.narrow(1, 0, o.channels).view({batch, o.heads, o.head_dim}),
                            .dt = in.dt.transpose(1, 2).expand({-1, -1, o.head_dim}),
                            .A = at::neg(at::exp(wide(A_log_))).view({o.heads, 1, 1}).expand({-1, o.head_dim, o.state}),
                            .B = token.narrow(1, o.channels, shared).view({batch, o.groups, o.state}),
                            .C = token.narrow(1, o.channels + shared, shared).view({batch, o.groups, o.state}),
                            .D = of_heads(D_),
                            .z = norm_ ? std::nullopt : OptionalTensor(in.gate.view({batch, o.heads, o.head_dim})),
                            .dt_bias = of_heads(dt_bias_)})
                       .view({batch, 1, o.channels});
  return norm_ ? norm_->forward(y, in.gate) : y;
}

Tensor Mamba2Mixer::forward(const Tensor& x, const ForwardContext& context) const {
  const MambaOptions& o = options_;
  const int64_t batch = x.size(0), wide_channels = conv_channels(o);
  const Tensor read = multiplied(without_padding(x, context), o.input_multiplier);
  const Tensor all = multipliers_.times(in_proj_.forward(read));  // [batch, time, gate, conv_channels, heads]
  RecurrentStates states;
  if (context.memory != nullptr) {
    states = context.memory->states(o.layer, all, {batch, wide_channels, o.conv_width},
                                    {batch, o.heads, o.head_dim, o.state});
  }
  const Tensor mixed = conv1d_.forward(all.narrow(2, o.channels, wide_channels).transpose(1, 2), context, states.conv);
  const Projected in{.xBC = without_padding(mixed.transpose(1, 2), context),
                     .dt = all.narrow(2, o.channels + wide_channels, o.heads),
                     .gate = all.narrow(2, 0, o.channels)};
  return out_proj_.forward(is_step(x, context) ? stepped(in, states.ssm) : scanned(in, context, states.ssm));
}

}  // namespace hotswap
