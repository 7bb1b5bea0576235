#include "hotswap/layers/mamba2_mixer.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/neg.h>

#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

int64_t conv_channels(const MambaOptions& o) { return o.channels + 2 * o.groups * o.state; }

}  // namespace

Mamba2Mixer::Mamba2Mixer(const MambaOptions& o)
    : options_(o),
      in_proj_(o.hidden_size, o.channels + conv_channels(o) + o.heads, o.bias),
      out_proj_(o.channels, o.hidden_size, o.bias, output_init(o.time_step, o.channels)),
      conv1d_(conv_channels(o), o.conv_width, o.conv_bias, o.time_step.is_special),
      norm_(o.channels, o.channels / o.groups, o.gated_norm_eps) {
  own("dt_bias", dt_bias_, {o.heads}, inverse_softplus_of(o.time_step));
  own("A_log", A_log_, {o.heads}, log_of_counts());
  own("D", D_, {o.heads}, Init::constant(1));
  own("conv1d", conv1d_);
  own("in_proj", in_proj_);
  own("norm", norm_);
  own("out_proj", out_proj_);
}

Tensor Mamba2Mixer::scanned(const Tensor& xBC, const Tensor& dt, const ForwardContext& context,
                            const Tensor& state) const {
  const MambaOptions& o = options_;
  const int64_t batch = xBC.size(0), time = xBC.size(1), shared = o.groups * o.state;
  const auto [y, last_state] =
      scan_({.x = xBC.narrow(2, 0, o.channels).view({batch, time, o.heads, o.head_dim}),
             .dt = dt,
             .A = at::neg(at::exp(wide(A_log_))),
             .B = xBC.narrow(2, o.channels, shared).view({batch, time, o.groups, o.state}),
             .C = xBC.narrow(2, o.channels + shared, shared).view({batch, time, o.groups, o.state}),
             .D = D_,
             .dt_bias = dt_bias_,
             .initial_state = initial_state(context, state),
             .seq_idx = if_defined(context.seq_idx),
             .chunk_size = o.chunk_size,
             .dt_min = o.dt_min,
             .dt_max = o.dt_max});
  if (state.defined()) state.copy_(last_state);
  return y.reshape({batch, time, o.channels});
}

Tensor Mamba2Mixer::stepped(const Tensor& xBC, const Tensor& dt, const Tensor& state) const {
  const MambaOptions& o = options_;
  const int64_t batch = xBC.size(0), shared = o.groups * o.state;
  const Tensor token = xBC.select(1, 0);  // [batch, conv_channels]
  const auto of_heads = [&](const Tensor& t) { return t.unsqueeze(-1).expand({-1, o.head_dim}); };  // [heads, head_dim]
  const Tensor y = update_({.state = state,
                            .x = token.narrow(1, 0, o.channels).view({batch, o.heads, o.head_dim}),
                            .dt = dt.transpose(1, 2).expand({-1, -1, o.head_dim}),
                            .A = at::neg(at::exp(wide(A_log_))).view({o.heads, 1, 1}).expand({-1, o.head_dim, o.state}),
                            .B = token.narrow(1, o.channels, shared).view({batch, o.groups, o.state}),
                            .C = token.narrow(1, o.channels + shared, shared).view({batch, o.groups, o.state}),
                            .D = of_heads(D_),
                            .dt_bias = of_heads(dt_bias_)});
  return y.view({batch, 1, o.channels});
}

Tensor Mamba2Mixer::forward(const Tensor& x, const ForwardContext& context) const {
  const MambaOptions& o = options_;
  const int64_t batch = x.size(0), wide_channels = conv_channels(o);
  const Tensor all = in_proj_.forward(without_padding(x, context));  // [batch, time, gate, conv_channels, heads]
  const Tensor gate = all.narrow(2, 0, o.channels), dt = all.narrow(2, o.channels + wide_channels, o.heads);
  RecurrentStates states;
  if (context.memory != nullptr) {
    states = context.memory->states(o.layer, all, {batch, wide_channels, o.conv_width},
                                    {batch, o.heads, o.head_dim, o.state});
  }
  const Tensor mixed = conv1d_.forward(all.narrow(2, o.channels, wide_channels).transpose(1, 2), context, states.conv);
  const Tensor xBC = without_padding(mixed.transpose(1, 2), context);  // [batch, time, conv_channels]
  const Tensor y = is_step(x, context) ? stepped(xBC, dt, states.ssm) : scanned(xBC, dt, context, states.ssm);
  return out_proj_.forward(norm_.forward(y, gate));
}

}  // namespace hotswap
