// Ops of the mamba package: schemas and rows, a family each.
#include "kernels/common/torch/ops.h"
#include "kernels/mamba/torch-ext/conv.h"
#include "kernels/mamba/torch-ext/gated_norm.h"
#include "kernels/mamba/torch-ext/scan.h"
#include "kernels/mamba/torch-ext/ssd.h"
#include "kernels/mamba/torch-ext/update.h"

namespace mamba {
namespace {

constexpr std::array kConv{
    kernels::op<&causal_conv1d>("causal_conv1d(" MAMBA_CONV_INPUTS ") -> Tensor"),
    kernels::op<&causal_conv1d_bwd>("causal_conv1d_bwd(Tensor dy, " MAMBA_CONV_INPUTS
                                    ") -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_state)"),
    kernels::op<&causal_conv1d_update>(
        "causal_conv1d_update(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, Tensor? cache_seqlens, "
        "Tensor? state_indices, str activation) -> Tensor"),
};

constexpr std::array kScan{
    kernels::op<&selective_scan>("selective_scan(" MAMBA_SCAN_INPUTS
                                 "bool delta_softplus) -> (Tensor y, Tensor last_state)"),
    kernels::op<&selective_scan_fwd>("selective_scan_fwd(" MAMBA_SCAN_INPUTS
                                     "bool delta_softplus) -> (Tensor y, Tensor last_state, Tensor checkpoints)"),
    kernels::op<&selective_scan_bwd>(
        "selective_scan_bwd(Tensor dy, Tensor? dlast_state, " MAMBA_SCAN_INPUTS
        "Tensor checkpoints, bool delta_softplus) -> (Tensor du, Tensor ddelta, Tensor dA, Tensor dB, Tensor dC, "
        "Tensor dD, Tensor dz, Tensor ddelta_bias, Tensor dinitial_state)"),
    kernels::op<&selective_state_update>(
        "selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, "
        "Tensor? z, Tensor? dt_bias, Tensor? state_indices, bool dt_softplus) -> Tensor"),
};

constexpr std::array kSsd{
    kernels::op<&ssd_op>("ssd(" MAMBA_SSD_INPUTS MAMBA_SSD_SETTINGS ") -> (Tensor y, Tensor final_state)"),
    kernels::op<&ssd_fwd>("ssd_fwd(" MAMBA_SSD_INPUTS MAMBA_SSD_SETTINGS
                          ") -> (Tensor y, Tensor final_state, Tensor states)"),
    kernels::op<&ssd_bwd>("ssd_bwd(Tensor dy, Tensor? dfinal_state, " MAMBA_SSD_INPUTS
                          "Tensor states, " MAMBA_SSD_SETTINGS ") -> " MAMBA_SSD_GRADIENTS),
};

#define MAMBA_GATED_NORM_SETTINGS "int group_size, bool norm_before_gate"
constexpr std::array kGatedNorm{
    kernels::op<&gated_rms_norm>("gated_rms_norm(Tensor x, Tensor z, Tensor weight, float eps, "  //
                                 MAMBA_GATED_NORM_SETTINGS ") -> Tensor"),
    kernels::op<&gated_rms_norm_fwd>("gated_rms_norm_fwd(Tensor x, Tensor z, Tensor weight, float eps, "  //
                                     MAMBA_GATED_NORM_SETTINGS ") -> (Tensor y, Tensor rstd)"),
    kernels::op<&gated_rms_norm_bwd>(
        "gated_rms_norm_bwd(Tensor dy, Tensor x, Tensor z, Tensor weight, Tensor rstd, " MAMBA_GATED_NORM_SETTINGS
        ") -> (Tensor dx, Tensor dz, Tensor dweight)"),
};

constexpr auto kOps = kernels::join(kConv, kScan, kSsd, kGatedNorm);
const kernels::Library<kOps> library;

}  // namespace
}  // namespace mamba
