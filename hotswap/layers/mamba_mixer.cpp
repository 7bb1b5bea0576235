#include "hotswap/layers/mamba_mixer.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/neg.h>

#include <cmath>

#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

Init dt_weight_init(const MambaOptions& o) {
  const TimeStepInit& t = o.time_step;
  if (!t.is_special) return Init::normal();
  const double bound = t.scale / std::sqrt(static_cast<double>(o.rank));
  return t.constant ? Init::constant(bound) : Init::uniform(bound);
}

}  // namespace

MambaMixer::MambaMixer(const MambaOptions& o)
    : options_(o),
      in_proj_(o.hidden_size, 2 * o.channels, o.bias),
      x_proj_(o.channels, o.rank + 2 * o.state, /*with_bias=*/false),
      dt_proj_(o.rank, o.channels, /*with_bias=*/true, dt_weight_init(o),
               o.time_step.is_special ? inverse_softplus_of(o.time_step) : Init::constant(0)),
      out_proj_(o.channels, o.hidden_size, o.bias, output_init(o.time_step, o.channels)),
      conv1d_(o.channels, o.conv_width, o.conv_bias, o.time_step.is_special) {
  own("A_log", A_log_, {o.channels, o.state}, log_of_counts());
  own("D", D_, {o.channels}, Init::constant(1));
  own("conv1d", conv1d_);
  own("in_proj", in_proj_);
  own("x_proj", x_proj_);
  own("dt_proj", dt_proj_);
  own("out_proj", out_proj_);
  if (!o.norm_eps) return;
  const auto norm = [&](const char* name, Norm& part, int64_t dim) {
    if (o.weighted_norms) {
      part.weighted = std::make_unique<RMSNorm>(dim, RMSNormOptions{.eps = *o.norm_eps});
      own(name, *part.weighted);
    } else {
      part.weightless = std::make_unique<WeightlessRMSNorm>(*o.norm_eps);
      own(name, *part.weightless);
    }
  };
  norm("dt_layernorm", dt_norm_, o.rank);
  norm("b_layernorm", b_norm_, o.state);
  norm("c_layernorm", c_norm_, o.state);
}

Tensor MambaMixer::Norm::operator()(const Tensor& x) const {
  if (weighted) return weighted->forward(x);
  return weightless ? weightless->forward(x) : x;
}

MambaMixer::Selected MambaMixer::selected(const Tensor& x) const {
  const Tensor all = x_proj_.forward(x);  // [batch, time, rank + 2 * state]
  const Tensor dt = dt_norm_(all.narrow(2, 0, options_.rank)),
               B = b_norm_(all.narrow(2, options_.rank, options_.state)),
               C = c_norm_(all.narrow(2, options_.rank + options_.state, options_.state));
  // Channels beside each other, as u has them: a scan on a GPU takes whole vectors only where all of its tensors lie
  // so.
  const Tensor delta = dt_proj_.without_bias(dt);
  return {delta.transpose(1, 2), B.transpose(1, 2), C.transpose(1, 2)};
}

Tensor MambaMixer::forward(const Tensor& x, const ForwardContext& context) const {
  const int64_t batch = x.size(0), channels = options_.channels;
  const Tensor xz = in_proj_.forward(without_padding(x, context)).transpose(1, 2);  // [batch, 2 * channels, time]
  const Tensor z = xz.narrow(1, channels, channels);
  RecurrentStates states;
  if (context.memory != nullptr) {
    states = context.memory->states(options_.layer, xz, {batch, channels, options_.conv_width},
                                    {batch, channels, options_.state});
  }
  const Tensor mixed = conv1d_.forward(xz.narrow(1, 0, channels), context, states.conv);
  const Tensor u = without_padding(mixed.transpose(1, 2), context);  // [batch, time, channels]
  const Selected s = selected(u);
  const Tensor A = at::neg(at::exp(wide(A_log_))), dt_bias = wide(dt_proj_.bias);
  if (is_step(x, context)) {
    const Tensor y = update_({.state = states.ssm,
                              .x = u.select(1, 0),
                              .dt = s.dt.select(2, 0),
                              .A = A,
                              .B = s.B.select(2, 0),
                              .C = s.C.select(2, 0),
                              .D = D_,
                              .z = z.select(2, 0),
                              .dt_bias = dt_bias});  // [batch, channels]
    return out_proj_.forward(y.unsqueeze(1));
  }
  const auto [y, last_state] = scan_({.u = u.transpose(1, 2),
                                      .delta = s.dt,
                                      .A = A,
                                      .B = s.B,
                                      .C = s.C,
                                      .D = wide(D_),
                                      .z = z,
                                      .delta_bias = dt_bias,
                                      .initial_state = initial_state(context, states.ssm),
                                      .seq_idx = if_defined(context.seq_idx)});
  if (states.ssm.defined()) states.ssm.copy_(last_state);
  return out_proj_.forward(y.transpose(1, 2));
}

}  // namespace hotswap
