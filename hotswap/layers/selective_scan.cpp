// selective_scan/1 and selective_state_update/1 in plain ATen.
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "hotswap/layers/mamba.h"
#include "hotswap/layers/wide.h"

namespace hotswap {
namespace {

// In the dtype of dt, as transformers has it. bias: broadcast to dt
Tensor time_step(const Tensor& dt, const OptionalTensor& bias, bool softplus) {
  const Tensor biased = bias ? at::add(dt, bias->to(dt.scalar_type())) : dt;
  return softplus ? at::softplus(biased) : biased;
}

OptionalTensor with_time(const OptionalTensor& per_channel) {
  return per_channel ? OptionalTensor(per_channel->unsqueeze(-1)) : std::nullopt;
}

// Which tokens go on where the one before them was: [batch, time - 1]
Tensor goes_on(const Tensor& seq_idx) {
  const int64_t time = seq_idx.size(1);
  return seq_idx.narrow(1, 1, time - 1).eq(seq_idx.narrow(1, 0, time - 1));
}

}  // namespace

std::tuple<Tensor, Tensor> stock::selective_scan(const SelectiveScanInputs& in) {
  const int64_t time = in.u.size(2);
  const at::ScalarType dtype = in.u.scalar_type();
  const Tensor dt = wide(time_step(in.delta, with_time(in.delta_bias), in.delta_softplus));
  const Tensor u = wide(in.u), B = wide(in.B);
  const Tensor same = in.seq_idx ? goes_on(*in.seq_idx) : Tensor();

  Tensor h = in.initial_state
                 ? wide(*in.initial_state)
                 : at::zeros({u.size(0), u.size(1), in.A.size(1)}, u.options());  // [batch, channels, state]
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < time; ++t) {
    const Tensor step = dt.select(2, t).unsqueeze(-1);  // [batch, channels, 1]
    Tensor decay = at::exp(at::mul(in.A.unsqueeze(0), step));
    const Tensor added = at::mul(at::mul(step, B.select(2, t).unsqueeze(1)), u.select(2, t).unsqueeze(-1));
    if (in.seq_idx && t > 0) decay = at::mul(decay, same.select(1, t - 1).view({-1, 1, 1}));
    h = at::add(at::mul(decay, h), added);
    outputs.push_back(at::matmul(h.to(dtype), in.C.select(2, t).unsqueeze(-1)).squeeze(-1));  // [batch, channels]
  }
  Tensor y = at::stack(outputs, -1);
  if (in.D) y = at::add(y, at::mul(in.u, in.D->unsqueeze(-1)));
  if (in.z) y = at::mul(y, at::silu(*in.z));
  return {y.to(dtype), h};
}

namespace {

Tensor update(const StateUpdateInputs& in) {
  const Tensor dt = wide(time_step(in.dt, in.dt_bias, in.dt_softplus)).unsqueeze(-1);  // [batch, channels, 1]
  const Tensor added = at::mul(at::mul(dt, wide(in.B).unsqueeze(1)), wide(in.x).unsqueeze(-1));
  const Tensor h = at::add(at::mul(wide(in.state), at::exp(at::mul(dt, in.A))), added);
  in.state.copy_(h);
  return at::matmul(h.to(in.C.scalar_type()), in.C.unsqueeze(-1)).squeeze(-1);
}

// transformers multiplies dt B x in the model's dtype here.
Tensor update_heads(const StateUpdateInputs& in) {
  const int64_t shared = in.x.size(1) / in.B.size(1);  // heads of a group
  const auto of_heads = [&](const Tensor& t) { return t.repeat_interleave(shared, 1).unsqueeze(2); };
  const Tensor dt = time_step(in.dt, in.dt_bias, in.dt_softplus).unsqueeze(-1);  // [batch, heads, head_dim, 1]
  const Tensor added = at::mul(at::mul(dt, of_heads(in.B)), in.x.unsqueeze(-1));
  const Tensor h = at::add(at::mul(in.state, at::exp(at::mul(wide(dt), in.A))), added);
  in.state.copy_(h);
  return at::matmul(h.to(in.C.scalar_type()), of_heads(in.C).transpose(2, 3)).squeeze(-1);
}

}  // namespace

Tensor stock::selective_state_update(const StateUpdateInputs& in) {
  Tensor y = in.state.dim() == 4 ? update_heads(in) : update(in);
  if (in.D) y = at::add(y, at::mul(in.x, *in.D));
  if (in.z) y = at::mul(y, at::silu(*in.z));
  return y.to(in.x.scalar_type());
}

}  // namespace hotswap
