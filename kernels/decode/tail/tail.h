// What follows attention in a layer, in one launch.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/decode/decode.h"

namespace decode::cuda {

// False where it does not fit: then nothing was launched. The launch before wrote none of the weights.
bool tail(const Layer& a, kernels::Stream stream);

}  // namespace decode::cuda
