// The gated norm's ops: their rows are in torch_binding.cpp.
#pragma once

#include "kernels/mamba/torch-ext/arguments.h"

namespace mamba {

using GatedNormGradients = std::tuple<Tensor, Tensor, Tensor>;

Tensor gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, double eps, int64_t group_size,
                      bool norm_before_gate);
std::tuple<Tensor, Tensor> gated_rms_norm_fwd(const Tensor& x, const Tensor& z, const Tensor& weight, double eps,
                                              int64_t group_size, bool norm_before_gate);
GatedNormGradients gated_rms_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& z, const Tensor& weight,
                                      const Tensor& rstd, int64_t group_size, bool norm_before_gate);

}  // namespace mamba
