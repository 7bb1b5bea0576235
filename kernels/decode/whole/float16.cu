// A whole layer in float16.
#include "kernels/decode/whole/launch.cuh"

namespace decode::cuda {

void launch_float16(const Whole& w, kernels::Stream stream) { launch_dtype<kernels::Half>(w, stream); }

}  // namespace decode::cuda
