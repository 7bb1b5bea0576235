// The ops of state space duality: their rows are in torch_binding.cpp.
#pragma once

#include "kernels/mamba/torch-ext/arguments.h"

namespace mamba {

using SsdGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

std::tuple<Tensor, Tensor> ssd_op(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                  const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& dt_bias,
                                  const MaybeTensor& initial_state, const MaybeTensor& seq_idx, int64_t chunk_size,
                                  bool dt_softplus, double dt_min, double dt_max);
std::tuple<Tensor, Tensor, Tensor> ssd_fwd(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                                           const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                                           const MaybeTensor& dt_bias, const MaybeTensor& initial_state,
                                           const MaybeTensor& seq_idx, int64_t chunk_size, bool dt_softplus,
                                           double dt_min, double dt_max);
SsdGradients ssd_bwd(const Tensor& dy, const MaybeTensor& dfinal_state, const Tensor& x, const Tensor& dt,
                     const Tensor& A, const Tensor& B, const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                     const MaybeTensor& dt_bias, const MaybeTensor& initial_state, const MaybeTensor& seq_idx,
                     const Tensor& states, int64_t chunk_size, bool dt_softplus, double dt_min, double dt_max);

#define MAMBA_SSD_INPUTS                                                                                              \
  "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? initial_state, " \
  "Tensor? seq_idx, "
#define MAMBA_SSD_SETTINGS "int chunk_size, bool dt_softplus, float dt_min, float dt_max"
#define MAMBA_SSD_GRADIENTS                                                                          \
  "(Tensor dx, Tensor ddt, Tensor dA, Tensor dB, Tensor dC, Tensor dD, Tensor dz, Tensor ddt_bias, " \
  "Tensor dinitial_state)"

}  // namespace mamba
