// The same formulas on a GPU: mlp.h's arguments with pointers to its memory. A launch on `stream` of the current
// device; errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/mlp/mlp.h"

namespace mlp::cuda {

void gated(const GatedArgs& a, kernels::Stream stream);  // backward where a.dy is given

}  // namespace mlp::cuda
