// Functions of each element whose bits do not depend on which rows stand beside a row.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>

namespace hotswap {

// On a CPU torch computes the last elements of a tensor, which fill no vector, by another formula than the others
// (sigmoid, silu, softplus). Here each row of x [..., n] fills whole ones.
template <class Function>
at::Tensor in_whole_vectors(const at::Tensor& x, const Function& function) {
  constexpr int64_t kVector = 32;  // elements of 16 bits, as of AVX-512
  const int64_t count = x.size(-1), rest = count % kVector;
  if (!x.is_cpu() || rest == 0) return function(x);
  return function(at::constant_pad_nd(x, {0, kVector - rest})).narrow(-1, 0, count);
}

}  // namespace hotswap
