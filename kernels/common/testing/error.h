// How far results of a benchmark are from float64.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace kernels::bench {

// Relative, in L2 norms.
inline double relative_l2(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}

// Of the worst of several.
inline double relative_l2(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = relative_l2(got[i], want[i]);
    if (std::isnan(error)) return error;  // std::max would lose it
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace kernels::bench
