// Packages in the shapes of kernels-community/rmsnorm and rotary: registered with torch's C++ API, for one torch alone.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
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

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("apply_rms_norm(Tensor hidden_states, Tensor weight, float variance_epsilon) -> Tensor[]");
  m.impl("apply_rms_norm", c10::DispatchKey::CompositeExplicitAutograd, &apply_rms_norm);
  m.def("apply_rotary(Tensor x1, Tensor x2, Tensor cos, Tensor sin, Tensor! out1, Tensor! out2, bool conj) -> ()");
  m.impl("apply_rotary", c10::kCPU, &apply_rotary);
}

extern "C" {
void* PyModule_Create2(void*, int);  // not weak: nobody has it here
__attribute__((visibility("default"))) void* PyInit_foreign() { return PyModule_Create2(nullptr, 3); }
}
