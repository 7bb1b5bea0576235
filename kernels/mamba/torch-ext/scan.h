// The selective scan's ops: their rows are in torch_binding.cpp.
#pragma once

#include "kernels/mamba/torch-ext/arguments.h"

namespace mamba {

using ScanResult = std::tuple<Tensor, Tensor>;
using ScanForTraining = std::tuple<Tensor, Tensor, Tensor>;
using ScanGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

ScanResult selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                          const MaybeTensor& D, const MaybeTensor& z, const MaybeTensor& delta_bias,
                          const MaybeTensor& initial_state, const MaybeTensor& seq_idx, bool delta_softplus);
ScanForTraining selective_scan_fwd(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                   const Tensor& C, const MaybeTensor& D, const MaybeTensor& z,
                                   const MaybeTensor& delta_bias, const MaybeTensor& initial_state,
                                   const MaybeTensor& seq_idx, bool delta_softplus);
ScanGradients selective_scan_bwd(const Tensor& dy, const MaybeTensor& dlast_state, const Tensor& u, const Tensor& delta,
                                 const Tensor& A, const Tensor& B, const Tensor& C, const MaybeTensor& D,
                                 const MaybeTensor& z, const MaybeTensor& delta_bias, const MaybeTensor& initial_state,
                                 const MaybeTensor& seq_idx, const Tensor& checkpoints, bool delta_softplus);

#define MAMBA_SCAN_INPUTS                                                                            \
  "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, " \
  "Tensor? initial_state, Tensor? seq_idx, "

}  // namespace mamba
