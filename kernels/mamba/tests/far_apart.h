// Tensors whose offsets do not fit 32 bits.
#pragma once

#include "kernels/common/testing/testing.h"

namespace mamba_test {

// t's values with 2^31 numbers between the first and the second of its first dimension.
inline at::Tensor far_apart(const at::Tensor& t) {
  auto strides = t.contiguous().strides().vec();
  strides[0] = int64_t{1} << 31;
  at::Tensor far = at::empty_strided(t.sizes(), strides, t.options());  // pages that nobody touches are not there
  return far.copy_(t);
}

}  // namespace mamba_test
