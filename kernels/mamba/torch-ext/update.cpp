// Checks and call of the scans' step of generation. The formulas are in kernels/mamba/update.h.
#include "kernels/mamba/torch-ext/update.h"

#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/update.h"

namespace mamba {
namespace {

const update::Table& table() {
  static const update::Table& chosen = HOTSWAP_CHOOSE_TABLE(mamba::update);
  return chosen;
}

// Of a call with heads, or without: then every tensor but the groups' has one head.
struct Shapes {
  const Call& call;
  bool heads;

  // [batch, heads, dim] or [batch, dim]
  update::Heads rows(const Tensor& t, const update::Problem& p) const {
    if (!heads) {
      call.shape(t, {p.batch, p.dim}, "[batch, channels]");
      return {call.view(t, 0, 1, -1), 0};
    }
    call.shape(t, {p.batch, p.heads, p.dim}, "[batch, heads, dim]");
    return {call.view(t, 0, 2, -1), t.stride(1)};
  }
  // [heads, dim] or [dim]
  update::Heads values(const MaybeTensor& t, const update::Problem& p) const {
    if (!t) return {};
    if (!heads) {
      call.shape(*t, {p.dim}, "[channels]");
      return {call.view(*t, -1, 0, -1), 0};
    }
    call.shape(*t, {p.heads, p.dim}, "[heads, dim]");
    return {call.view(*t, -1, 1, -1), t->stride(0)};
  }
  // [batch, groups, states], or [batch, states] where that is one group
  update::Heads coefficients(const Tensor& t, const update::Problem& p) const {
    if (t.dim() == 2) {
      call.shape(t, {p.batch, p.states}, "[batch, states]");
      return {call.view(t, 0, 1, -1), 0};
    }
    call.shape(t, {p.batch, p.groups, p.states}, "[batch, groups, states]");
    return {call.view(t, 0, 2, -1), t.stride(1)};
  }
};

}  // namespace

Tensor selective_state_update(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                              const Tensor& C, const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& dt_bias,
                              const MaybeTensor& state_indices, bool dt_softplus) {
  const Call call{"selective_state_update", device_of(x)};
  const bool heads = state.dim() == 4;
  call.dims(state, heads ? 4 : 3, "[rows, channels, states] or [rows, heads, dim, states]");
  const int last = heads ? 3 : 2;
  update::Problem p{};
  p.batch = x.dim() > 0 ? x.size(0) : 0;
  p.heads = heads ? state.size(1) : 1;
  p.dim = state.size(last - 1);
  p.groups = B.dim() == 3 ? B.size(1) : 1;
  p.states = int(state.size(last));
  p.softplus = dt_softplus;
  check(state.size(last) >= 1 && state.size(last) <= update::kMaxStates, call.op, ": expected 1 to ",
        update::kMaxStates, " states a channel; got ", state.size(last), "; sum the results of several calls");
  check(p.groups >= 1 && p.heads % p.groups == 0, call.op, ": expected heads that ", p.groups,
        " groups of B and C share evenly; got ", p.heads, "; check the layer's sizes");
  check(state_indices || state.size(0) == p.batch, call.op, ": expected a state of ", p.batch, " rows, as x has; got ",
        state.size(0), "; pass state_indices");
  const Shapes shapes{call, heads};
  p.state = {call.view(state, 0, last - 1, last), heads ? state.stride(1) : 0};
  p.x = shapes.rows(x, p);
  p.dt = shapes.rows(dt, p);
  if (z) p.z = shapes.rows(*z, p);
  if (heads) {
    call.shape(A, {p.heads, p.dim, p.states}, "[heads, dim, states]");
    p.a = {call.view(A, -1, 1, 2), A.stride(0)};
  } else {
    call.shape(A, {p.dim, p.states}, "[channels, states]");
    p.a = {call.view(A, -1, 0, 1), 0};
  }
  p.b = shapes.coefficients(B, p);
  p.c = shapes.coefficients(C, p);
  p.d = shapes.values(D, p);
  p.dt_bias = shapes.values(dt_bias, p);
  Tensor kept;
  p.indices = call.rows(state_indices, p.batch, state.size(0), kept);
  Tensor y = kernels::empty_like(x, p.x.view.type);
  p.y = shapes.rows(y, p);
  kernels::run_on(
      call.device, [&](auto stream) { cuda::state_update(p, stream); },
      [&] {
        kernels::parallel_rows(p.batch * p.heads * blocks_of(p.dim), kBlock * p.states,
                               [&](int64_t begin, int64_t end) { table().update(p, begin, end); });
      });
  return y;
}

}  // namespace mamba
