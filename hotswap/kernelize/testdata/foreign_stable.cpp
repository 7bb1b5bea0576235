// A package in the shape of kernels-community/activation: torch's stable ABI, ops that fill a given tensor, no
// backward, and the module entry that names a symbol of Python's.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>

#define LIBRARY(ns, m) STABLE_TORCH_LIBRARY(ns, m)
#define LIBRARY_IMPL(ns, key, m) STABLE_TORCH_LIBRARY_IMPL(ns, key, m)

namespace {

using torch::stable::Tensor;

float silu_of(float x) { return x / (1 + std::exp(-x)); }
float gelu_of(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678f)); }
float gelu_tanh_of(float x) { return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x))); }
float gelu_quick_of(float x) { return x / (1 + std::exp(-1.702f * x)); }

template <float (*act)(float)>
void fill(Tensor out, Tensor input) {
  const auto* x = static_cast<const float*>(input.data_ptr());
  auto* y = static_cast<float*>(out.data_ptr());
  for (int64_t i = 0; i < out.numel(); ++i) y[i] = act(x[i]);
}

template <float (*act)(float)>
void fill_gated(Tensor out, Tensor input) {
  const auto* x = static_cast<const float*>(input.data_ptr());
  auto* y = static_cast<float*>(out.data_ptr());
  const int64_t dim = out.size(out.dim() - 1);
  for (int64_t i = 0; i < out.numel(); ++i) {
    const float* row = x + i / dim * 2 * dim;
    y[i] = act(row[i % dim]) * row[dim + i % dim];
  }
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  for (const char* op : {"silu", "gelu", "gelu_tanh", "gelu_new", "gelu_fast", "gelu_quick", "silu_and_mul",
                         "gelu_and_mul", "gelu_tanh_and_mul", "mul_and_silu"}) {
    m.def((std::string(op) + "(Tensor! out, Tensor input) -> ()").c_str());
  }
}

LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) {  // none for gelu_tanh_and_mul: the Hub's CPU variant lacks some, too
  m.impl("silu", TORCH_BOX(&fill<silu_of>));
  m.impl("gelu", TORCH_BOX(&fill<gelu_of>));
  m.impl("gelu_tanh", TORCH_BOX(&fill<gelu_tanh_of>));
  m.impl("gelu_new", TORCH_BOX(&fill<gelu_tanh_of>));
  m.impl("gelu_fast", TORCH_BOX(&fill<gelu_tanh_of>));
  m.impl("gelu_quick", TORCH_BOX(&fill<gelu_quick_of>));
  m.impl("silu_and_mul", TORCH_BOX(&fill_gated<silu_of>));
  m.impl("gelu_and_mul", TORCH_BOX(&fill_gated<gelu_of>));
}

extern "C" {
void* PyModule_Create2(void*, int);  // not weak: nobody has it here
__attribute__((visibility("default"))) void* PyInit_foreign() { return PyModule_Create2(nullptr, 3); }
}
