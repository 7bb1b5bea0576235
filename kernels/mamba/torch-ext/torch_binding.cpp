// Ops of the mamba package: schemas and rows, a family each.
#include "kernels/common/torch/ops.h"
#include "kernels/mamba/torch-ext/conv.h"

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

constexpr auto kOps = kernels::join(kConv);
const kernels::Library<kOps> library;

}  // namespace
}  // namespace mamba
