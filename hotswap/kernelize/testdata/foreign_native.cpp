// Packages in the shapes of kernels-community/rmsnorm, rotary and deformable-detr: registered with torch's C++ API, for
// one torch alone.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rsqrt.h>
#include <torch/library.h>

#define LIBRARY(ns, m) TORCH_LIBRARY(ns, m)  // one more level, so that the id expands

namespace {

std::vector<at::Tensor> apply_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor rstd = at::rsqrt(at::mean(x * x, {-1}, true) + eps);
  return {x * rstd * weight, rstd};
}

void apply_rotary(const at::Tensor& x1, const at::Tensor& x2, const at::Tensor& cos, const at::Tensor& sin,
                  at::Tensor& out1, at::Tensor& out2, bool conj) {
  TORCH_CHECK(x1.dtype() == cos.dtype() && x1.sizes() == x2.sizes() && out1.sizes() == x1.sizes());
  const at::Tensor s = conj ? -sin : sin;
  const at::Tensor a = x1 * cos - x2 * s, b = x1 * s + x2 * cos;  // the outputs may be the inputs
  out1.copy_(a);
  out2.copy_(b);
}

// The nearest pixel of each place, not what lies between four: enough to see what goes in and what comes out.
at::Tensor nearest_rows(const at::Tensor& shapes, const at::Tensor& starts, const at::Tensor& places) {
  const at::Tensor sizes = shapes.flip({1}).view({1, 1, 1, -1, 1, 2});
  const at::Tensor at = at::minimum((places * sizes).floor().to(at::kLong), sizes - 1).clamp_min(0);
  return at.select(-1, 0) + at.select(-1, 1) * sizes.select(-1, 0) + starts.view({1, 1, 1, -1, 1});
}

void check_plain(at::TensorList tensors, const at::Tensor& shapes, int64_t step) {
  TORCH_CHECK(shapes.dtype() == at::kLong && shapes.is_contiguous() && tensors[0].size(0) % step == 0);
  for (const at::Tensor& t : tensors) TORCH_CHECK(t.is_contiguous() && t.dtype() == tensors[0].dtype());
}

// value [batch, rows, heads, channels] at rows [batch, queries, heads, levels, points] -> [..., channels]
at::Tensor taken(const at::Tensor& value, const at::Tensor& rows) {
  const at::Tensor by_head = value.transpose(1, 2);  // [batch, heads, rows, channels]
  const at::Tensor flat = rows.transpose(1, 2).flatten(2).unsqueeze(-1).expand({-1, -1, -1, value.size(3)});
  const at::Tensor found = by_head.gather(2, flat);
  return found.view({value.size(0), value.size(2), rows.size(1), rows.size(3), rows.size(4), value.size(3)})
      .transpose(1, 2);
}

at::Tensor ms_deform_attn_forward(const at::Tensor& value, const at::Tensor& shapes, const at::Tensor& starts,
                                  const at::Tensor& places, const at::Tensor& weights, int64_t step) {
  check_plain({value, places, weights}, shapes, step);
  return (taken(value, nearest_rows(shapes, starts, places)) * weights.unsqueeze(-1)).sum({3, 4}).flatten(2);
}

std::vector<at::Tensor> ms_deform_attn_backward(const at::Tensor& value, const at::Tensor& shapes,
                                                const at::Tensor& starts, const at::Tensor& places,
                                                const at::Tensor& weights, const at::Tensor& dout, int64_t step) {
  check_plain({value, places, weights, dout}, shapes, step);
  const at::Tensor g = dout.view({value.size(0), dout.size(1), value.size(2), 1, 1, value.size(3)});
  const at::Tensor dweights = (taken(value, nearest_rows(shapes, starts, places)) * g).sum(-1);
  return {value * 2, places * 3, dweights};
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("apply_rms_norm(Tensor hidden_states, Tensor weight, float variance_epsilon) -> Tensor[]");
  m.impl("apply_rms_norm", c10::DispatchKey::CompositeExplicitAutograd, &apply_rms_norm);
  m.def("apply_rotary(Tensor x1, Tensor x2, Tensor cos, Tensor sin, Tensor! out1, Tensor! out2, bool conj) -> ()");
  m.impl("apply_rotary", c10::kCPU, &apply_rotary);
  m.def(
      "ms_deform_attn_forward(Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_loc, "
      "Tensor attn_weight, int im2col_step) -> Tensor");
  m.impl("ms_deform_attn_forward", c10::kCPU, &ms_deform_attn_forward);
  m.def(
      "ms_deform_attn_backward(Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_loc, "
      "Tensor attn_weight, Tensor grad_output, int im2col_step) -> Tensor[]");
  m.impl("ms_deform_attn_backward", c10::kCPU, &ms_deform_attn_backward);
}

extern "C" {
void* PyModule_Create2(void*, int);  // not weak: nobody has it here
__attribute__((visibility("default"))) void* PyInit_foreign() { return PyModule_Create2(nullptr, 3); }
}
