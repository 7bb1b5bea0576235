// The same on a GPU, of 16-bit numbers, and greedy choices. A launch on `stream` of the current device; errors are
// thrown.
#pragma once

#include "kernels/common/gpu/few_rows.h"
#include "kernels/common/gpu/launch.h"
#include "kernels/linear/sample.h"

namespace linear::cuda {

void few_rows(const kernels::gpu::FewRows& a, kernels::Stream stream);  // what fits_few_rows() says yes to
bool few_rows_pay(const kernels::gpu::FewRows& a);                      // on the current device

struct Largest {
  kernels::DType dtype;
  const void* x;  // [rows, cols]
  int64_t x_stride, rows, cols;
  int64_t* place;  // [rows]
  // Written as well, unless null: said[at * rows + row].
  int64_t* said = nullptr;
  const int64_t* at = nullptr;
};
void largest(const Largest& a, kernels::Stream stream);

void sample(const Sample& a, kernels::Stream stream);

}  // namespace linear::cuda
