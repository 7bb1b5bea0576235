#include "hotswap/layers/gated_delta_net.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>

#include "hotswap/layers/whole_vectors.h"
#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

int64_t key_channels(const GatedDeltaNetOptions& o) { return o.key_heads * o.key_dim; }
int64_t value_channels(const GatedDeltaNetOptions& o) { return o.heads * o.value_dim; }
int64_t mixed_channels(const GatedDeltaNetOptions& o) { return 2 * key_channels(o) + value_channels(o); }

// Kept away from 0, whose logarithm is infinite.
Init log_of_uniform() {
  return Init::drawn([](Tensor& fresh, const at::Generator& generator) { fresh.uniform_(0.01, 16, generator).log_(); });
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const GatedDeltaNetOptions& o)
    : options_(o),
      conv1d_(mixed_channels(o), o.conv_width, /*with_bias=*/false, /*is_special=*/false),
      norm_(o.value_dim, o.value_dim, o.norm_eps, /*before_gate=*/true),
      out_proj_(value_channels(o), o.hidden_size, /*with_bias=*/false) {
  const auto make = [&](std::unique_ptr<Linear>& projection, const char* name, int64_t out) {
    projection = std::make_unique<Linear>(o.hidden_size, out, /*with_bias=*/false);
    own(name, *projection);
  };
  own("dt_bias", dt_bias_, {o.heads}, Init::constant(1));
  own("A_log", A_log_, {o.heads}, log_of_uniform());
  own("conv1d", conv1d_);
  if (o.packed) {
    make(qkvz_, "in_proj_qkvz", mixed_channels(o) + value_channels(o));
    make(ba_, "in_proj_ba", 2 * o.heads);
  }
  own("norm", norm_);
  own("out_proj", out_proj_);
  if (o.packed) return;
  make(qkv_, "in_proj_qkv", mixed_channels(o));
  make(z_, "in_proj_z", value_channels(o));
  make(b_, "in_proj_b", o.heads);
  make(a_, "in_proj_a", o.heads);
}

GatedDeltaNet::Projected GatedDeltaNet::projected(const Tensor& x) const {
  const GatedDeltaNetOptions& o = options_;
  const int64_t batch = x.size(0), time = x.size(1), shared = o.heads / o.key_heads;
  if (!o.packed) {
    return {.qkv = qkv_->forward(x),
            .gate = z_->forward(x).view({batch, time, o.heads, o.value_dim}),
            .b = b_->forward(x),
            .a = a_->forward(x)};
  }
  const Tensor all = qkvz_->forward(x).view({batch, time, o.key_heads, -1});
  const Tensor ba = ba_->forward(x).view({batch, time, o.key_heads, 2 * shared});
  const auto part = [&](int64_t from, int64_t width) { return all.narrow(-1, from, width).flatten(2); };
  const int64_t values = shared * o.value_dim;
  return {.qkv = at::cat({part(0, o.key_dim), part(o.key_dim, o.key_dim), part(2 * o.key_dim, values)}, -1),
          .gate = part(2 * o.key_dim + values, values).view({batch, time, o.heads, o.value_dim}),
          .b = ba.narrow(-1, 0, shared).flatten(2),
          .a = ba.narrow(-1, shared, shared).flatten(2)};
}

GatedDeltaInputs GatedDeltaNet::inputs(const Projected& in, const Tensor& mixed) const {
  const GatedDeltaNetOptions& o = options_;
  const int64_t batch = mixed.size(0), time = mixed.size(1), keys = key_channels(o);
  const Tensor rate = row_softplus(at::add(wide(in.a), dt_bias_));
  const auto of_keys = [&](int64_t from) {
    return mixed.narrow(-1, from, keys).unflatten(-1, {o.key_heads, o.key_dim});
  };
  return {.q = of_keys(0),
          .k = of_keys(keys),
          .v = mixed.narrow(-1, 2 * keys, value_channels(o)).reshape({batch, time, o.heads, o.value_dim}),
          .g = at::mul(at::neg(at::exp(wide(A_log_))), rate),
          .beta = row_sigmoid(in.b)};
}

Tensor GatedDeltaNet::forward(const Tensor& x, const ForwardContext& context) const {
  const GatedDeltaNetOptions& o = options_;
  const Projected in = projected(without_padding(x, context));
  RecurrentStates states;
  if (context.memory != nullptr) {
    const int64_t batch = x.size(0);
    states = context.memory->states(o.layer, in.qkv, {batch, mixed_channels(o), o.conv_width},
                                    {batch, o.heads, o.key_dim, o.value_dim});
  }
  const Tensor mixed = conv1d_.forward(in.qkv.transpose(1, 2), context, states.conv).transpose(1, 2);
  Tensor y;  // [batch, time, heads, value_dim]
  if (is_step(x, context)) {
    y = gated_delta_step(inputs(in, mixed), states.ssm);
  } else {
    GatedDeltaInputs rule = inputs(in, mixed);
    rule.initial_state = initial_state(context, states.ssm);
    rule.seq_idx = if_defined(context.seq_idx);
    Tensor last;
    std::tie(y, last) = gated_delta_rule(rule);
    if (states.ssm.defined()) states.ssm.copy_(last);
  }
  return out_proj_.forward(norm_.forward(y, in.gate).flatten(2));
}

}  // namespace hotswap
