// The same formulas on a GPU: optimizer.h's arguments with pointers to its memory. Launches on `stream` of the current
// device; errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/optimizer/optimizer.h"

namespace optimizer::cuda {

using kernels::Stream;

void adamw(const Update& u, const Item* items, int64_t count, Stream stream);

}  // namespace optimizer::cuda
