// Ops of the mamba package: schemas and rows, a family each.
#include "kernels/common/torch/ops.h"
#include "kernels/mamba/torch-ext/conv.h"
#include "kernels/mamba/torch-ext/scan.h"

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
};

constexpr auto kOps = kernels::join(kConv, kScan);
const kernels::Library<kOps> library;

}  // namespace
}  // namespace mamba
