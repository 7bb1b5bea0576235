// The package's ops on a GPU: the arguments of conv.h and its neighbours with pointers to its memory. Each call is some
// launches on `stream` of the current device; errors are thrown. Nothing is read back, and no sum is atomic: the bits
// are the same run after run.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/mamba/conv.h"

namespace mamba::cuda {

using kernels::Stream;

// Entries of Backward's partials: so many times [width + 1, channels], whatever the views' layout.
int64_t conv_partials(const conv::Problem& p);
void conv_forward(const conv::Forward& a, Stream stream);
void conv_backward(const conv::Backward& a, Stream stream);  // with the sums of the partials
void conv_update(const conv::Update& a, Stream stream);

}  // namespace mamba::cuda
