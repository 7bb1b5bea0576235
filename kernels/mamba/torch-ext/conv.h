// The convolution's ops: their rows are in torch_binding.cpp.
#pragma once

#include "kernels/mamba/torch-ext/arguments.h"

namespace mamba {

using ConvGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Tensor causal_conv1d(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const MaybeTensor& initial_state,
                     const MaybeTensor& seq_idx, std::string activation);
ConvGradients causal_conv1d_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                                const MaybeTensor& initial_state, const MaybeTensor& seq_idx, std::string activation);
Tensor causal_conv1d_update(const Tensor& x, const Tensor& state, const Tensor& weight, const MaybeTensor& bias,
                            const MaybeTensor& cache_seqlens, const MaybeTensor& state_indices, std::string activation);

#define MAMBA_CONV_INPUTS \
  "Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? seq_idx, str activation"

}  // namespace mamba
