// attention.h's formulas on a GPU. Launches on `stream` of the current device; errors are thrown.
#pragma once

#include <string>

#include "kernels/attention/attention.h"
#include "kernels/common/gpu/launch.h"

namespace attention::cuda {

using kernels::Stream;

// Why the kernels cannot take it ("" if they can): what is wanted and what came. Strides that they cannot take are the
// caller's to copy.
std::string refused(const Forward& a);

// `counter`: one int32 of the device's memory for this call alone, with any value.
void forward(const Forward& a, int* counter, Stream stream);

}  // namespace attention::cuda
