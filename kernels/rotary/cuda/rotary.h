// The same formulas on a GPU: rotary.h's arguments with pointers to its memory; q and k in one launch on `stream` of
// the current device. Errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/rotary/rotary.h"

namespace rotary::cuda {

void rotate(const RotaryArgs& a, kernels::Stream stream);

}  // namespace rotary::cuda
