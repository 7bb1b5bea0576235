// A whole layer in bfloat16.
#include "kernels/decode/whole/launch.cuh"

namespace decode::cuda {

void launch_bfloat16(const Whole& w, kernels::Stream stream) { launch_dtype<kernels::BFloat16>(w, stream); }

}  // namespace decode::cuda
