// Functions of each element whose bits do not depend on which rows stand beside a row.
#pragma once

#include <ATen/core/Tensor.h>

namespace hotswap {

// On a CPU torch computes the last elements of a tensor, which fill no vector, by another formula than the others
// (sigmoid, silu, softplus). Here each row of x [..., n] fills whole ones.
at::Tensor in_whole_vectors(const at::Tensor& x, at::Tensor (*function)(const at::Tensor&));

}  // namespace hotswap
