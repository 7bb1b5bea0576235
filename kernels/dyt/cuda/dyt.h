// The same formulas on a GPU: dyt.h's arguments with pointers to its memory. Launches on `stream` of the current
// device; errors are thrown.
#pragma once

#include "kernels/common/gpu/launch.h"
#include "kernels/dyt/dyt.h"

namespace dyt::cuda {

using kernels::Stream;

// A block takes a strip of columns, `lanes` threads a row of it, through rows chunks * groups apart. Backward has
// partial sums of each chunk.
struct Plan {
  int64_t chunks, strips;
  int lanes, groups;  // groups: rows at once
};
Plan plan_backward(const Backward& a);

// dalpha, dgamma, dbeta of the partial sums, in the type of alpha and gamma.
struct Sums {
  void *dalpha, *dgamma, *dbeta;
};

void forward(const Forward& a, Stream stream);
void backward(const Backward& a, const Plan& p, const Sums& sums, Stream stream);

}  // namespace dyt::cuda
