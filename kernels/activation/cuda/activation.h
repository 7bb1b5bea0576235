// The same formulas on a GPU: activation.h's arguments with pointers to its memory, over all rows. A launch on `stream`
// of the current device; errors are thrown.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/common/gpu/launch.h"

namespace activation::cuda {

void unary(const Unary& a, int64_t rows, kernels::Stream stream);  // backward where a.dy is given
void and_mul(const AndMul& a, int64_t rows, kernels::Stream stream);

}  // namespace activation::cuda
