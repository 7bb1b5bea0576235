// The same formulas on a GPU: norm.h's arguments with pointers to its memory, except that weights stay in their own
// type (Scale without `scale`), and backward's partial sums are one row a block (up to partial_rows).
// Each is a launch on `stream` of the current device; errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/norm/norm.h"

namespace norms::cuda {

using kernels::Stream;

void rms_norm_forward(const RmsNormForward& a, const Scale& weight, int64_t rows, Stream stream);
void layer_norm_forward(const LayerNormForward& a, const Scale& weight, const Scale& bias, int64_t rows, Stream stream);

// At most so many rows of `partial` are written: the caller allocates them. Backward returns how many it was.
int64_t partial_rows(int64_t rows, int64_t cols, DType dtype);
int64_t rms_norm_backward(const RmsNormBackward& a, const Scale& weight, Stream stream);
int64_t layer_norm_backward(const LayerNormBackward& a, const Scale& weight, Stream stream);
void column_sum(const ColumnSum& a, Stream stream);  // in a fixed order (column_sums.cuh)

}  // namespace norms::cuda
