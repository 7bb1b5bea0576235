// A whole layer in one launch on a GPU.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/decode/whole/plan.h"

namespace decode::cuda {

// False where the layer does not fit: then nothing was launched. `a` is one that refuses() has nothing against.
bool whole_layer(const Layer& a, kernels::Stream stream);

// Of one dtype.
void launch_bfloat16(const Whole& w, kernels::Stream stream);
void launch_float16(const Whole& w, kernels::Stream stream);

}  // namespace decode::cuda
