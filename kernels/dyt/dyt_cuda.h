// The same formulas on a GPU: dyt.h's arguments with pointers to its memory. Launches on `stream` of the current
// device; errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/dyt/dyt.h"

namespace dyt::cuda {

using kernels::Stream;

// Rows a chunk and strips of columns, for whoever allocates the partial sums.
struct Plan {
  int64_t chunk, chunks, strips;
};
Plan plan(int64_t rows, int64_t cols, DType dtype);

void forward(const Forward& a, Stream stream);
void backward(const Backward& a, Stream stream);
void column_sum(const ColumnSum& a, Stream stream);

}  // namespace dyt::cuda
