// Packages in the shapes of kernels-community/causal-conv1d and mamba-ssm, with what these ask of their inputs.
// Forwards compute; gradients are multiples of what goes in, enough to see what goes in and what comes out.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#define LIBRARY(ns, m) TORCH_LIBRARY(ns, m)  // one more level, so that the id expands

namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

void check_conv(const Tensor& x, const Tensor& weight, const Maybe& bias) {
  const bool channel_last = x.stride(1) == 1 && x.stride(2) > 1;
  TORCH_CHECK(channel_last || x.stride(2) == 1);
  TORCH_CHECK(!channel_last || (x.size(1) % 8 == 0 && x.stride(0) % 8 == 0 && x.stride(2) % 8 == 0));
  TORCH_CHECK(weight.size(1) >= 2 && weight.size(1) <= 4 && (!bias || bias->dtype() == weight.dtype()));
}

Tensor convolved(const Tensor& seen, const Tensor& weight, const Maybe& bias, bool silu) {
  const std::vector<int64_t> one = {1}, none = {0};
  const Tensor y = at::conv1d(seen, weight.unsqueeze(1), bias, one, none, one, weight.size(0));
  return silu ? at::silu(y) : y;
}

void causal_conv1d_fwd(const Tensor& x, const Tensor& weight, const Maybe& bias, const Maybe& seq_idx,
                       const Maybe& initial, Tensor& out, const Maybe& final_states, bool silu) {
  check_conv(x, weight, bias);
  TORCH_CHECK(!seq_idx && !initial && !final_states && out.strides() == x.strides());
  out.copy_(convolved(at::constant_pad_nd(x, {weight.size(1) - 1, 0}), weight, bias, silu));
}

void causal_conv1d_bwd(const Tensor& x, const Tensor& weight, const Maybe& bias, Tensor& dout, const Maybe&,
                       const Maybe&, const Maybe&, Tensor& dx, Tensor& dweight, const Maybe& dbias, const Maybe&,
                       bool silu) {
  check_conv(x, weight, bias);
  TORCH_CHECK(dx.strides() == x.strides() && dout.strides() == x.strides() && dweight.dtype() == at::kFloat && silu);
  TORCH_CHECK(dweight.abs().sum().item<double>() == 0 && bias.has_value() == dbias.has_value());
  dx.copy_(dout * 2);
  dweight.copy_(weight * 3);
  if (dbias) dbias->copy_(*bias * 4);
}

void causal_conv1d_update(const Tensor& x, const Tensor& state, const Tensor& weight, const Maybe& bias, Tensor& out,
                          bool silu, const Maybe& lengths, const Maybe& indices) {
  TORCH_CHECK(!lengths && !indices && state.size(2) >= weight.size(1) - 1);
  const Tensor seen = at::cat({state, x}, 2);
  state.copy_(seen.narrow(2, x.size(2), state.size(2)));
  const int64_t wanted = x.size(2) + weight.size(1) - 1;
  out.copy_(convolved(seen.narrow(2, seen.size(2) - wanted, wanted), weight, bias, silu));
}

void check_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C, const Maybe& D,
                const Maybe& z, const Maybe& bias) {
  for (const Tensor& t : {u, delta, B, C}) TORCH_CHECK(t.stride(-1) == 1 && t.dtype() == u.dtype());
  TORCH_CHECK(A.dtype() == at::kFloat && B.dim() == 4 && C.dim() == 4 && B.size(1) == 1);
  TORCH_CHECK((!D || D->dtype() == at::kFloat) && (!bias || bias->dtype() == at::kFloat));
  TORCH_CHECK(!z || (z->stride(-1) == 1 && z->dtype() == u.dtype()));
}

// Of one chunk: out, (product, state) pairs at its end, out_z.
std::vector<Tensor> selective_scan_fwd(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                       const Tensor& C, const Maybe& D, const Maybe& z, const Maybe& bias,
                                       bool softplus) {
  check_scan(u, delta, A, B, C, D, z, bias);
  Tensor dt = delta.to(at::kFloat);
  if (bias) dt = dt + bias->unsqueeze(-1);
  if (softplus) dt = at::softplus(dt);
  Tensor h = at::zeros({u.size(0), u.size(1), A.size(1)}, A.options());
  std::vector<Tensor> y;
  for (int64_t t = 0; t < u.size(2); ++t) {
    const Tensor step = dt.select(2, t).unsqueeze(-1);
    h = (step * A).exp() * h + step * B.select(3, t) * u.select(2, t).unsqueeze(-1);
    y.push_back((h * C.select(3, t)).sum(-1));
  }
  Tensor out = at::stack(y, 2);
  if (D) out = out + u * D->unsqueeze(-1);
  const Tensor ends = at::stack({h * 0 - 7, h}, -1).flatten(2).unsqueeze(2);
  std::vector<Tensor> results = {out.to(u.dtype()), ends};
  if (z) results.push_back((out * at::silu(*z)).to(u.dtype()));
  return results;
}

std::vector<Tensor> selective_scan_bwd(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                       const Tensor& C, const Maybe& D, const Maybe& z, const Maybe& bias,
                                       const Tensor& dout, const Maybe& ends, const Maybe& out, const Maybe& dz,
                                       bool softplus, bool recompute) {
  check_scan(u, delta, A, B, C, D, z, bias);
  TORCH_CHECK(dout.stride(-1) == 1 && ends && ends->dim() == 4 && !dz && softplus && !recompute);
  TORCH_CHECK(out.has_value() == z.has_value());
  std::vector<Tensor> results = {
      dout * 2, delta * 3, A * 4, B * 5, C * 6, D ? *D * 7 : Tensor(), bias ? *bias * 8 : Tensor()};
  if (z) results.push_back(*out * 9);
  return results;
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def(
      "causal_conv1d_fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, Tensor! out, "
      "Tensor(b!)? final_states_out, bool silu_activation) -> ()");
  m.impl("causal_conv1d_fwd", c10::kCPU, &causal_conv1d_fwd);
  m.def(
      "causal_conv1d_bwd(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) dout, Tensor? seq_idx, Tensor? "
      "initial_states, Tensor? dfinal_states, Tensor(b!) dx, Tensor(c!) dweight, Tensor(d!)? dbias, "
      "Tensor(e!)? dinitial_states, bool silu_activation) -> ()");
  m.impl("causal_conv1d_bwd", c10::kCPU, &causal_conv1d_bwd);
  m.def(
      "causal_conv1d_update(Tensor x, Tensor conv_state, Tensor weight, Tensor? bias, Tensor! out, bool "
      "silu_activation, Tensor? cache_seqlens, Tensor? conv_state_indices) -> ()");
  m.impl("causal_conv1d_update", c10::kCPU, &causal_conv1d_update);
  m.def(
      "selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D_, Tensor? z_, Tensor? "
      "delta_bias_, bool delta_softplus) -> Tensor[]");
  m.impl("selective_scan_fwd", c10::kCPU, &selective_scan_fwd);
  m.def(
      "selective_scan_bwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D_, Tensor? z_, Tensor? "
      "delta_bias_, Tensor dout, Tensor? x_, Tensor? out_, Tensor(a!)? dz_, bool delta_softplus, bool recompute_out_z) "
      "-> Tensor[]");
  m.impl("selective_scan_bwd", c10::kCPU, &selective_scan_bwd);
}

extern "C" {
void* PyModule_Create2(void*, int);  // not weak: nobody has it here
__attribute__((visibility("default"))) void* PyInit_foreign() { return PyModule_Create2(nullptr, 3); }
}
