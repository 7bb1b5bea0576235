// The scans' step of generation: its row is in torch_binding.cpp.
#pragma once

#include "kernels/mamba/torch-ext/arguments.h"

namespace mamba {

Tensor selective_state_update(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                              const Tensor& C, const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& dt_bias,
                              const MaybeTensor& state_indices, bool dt_softplus);

}  // namespace mamba
