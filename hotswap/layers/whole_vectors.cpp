#include "hotswap/layers/whole_vectors.h"

#include <ATen/ops/constant_pad_nd.h>

namespace hotswap {

at::Tensor in_whole_vectors(const at::Tensor& x, at::Tensor (*function)(const at::Tensor&)) {
  constexpr int64_t kVector = 32;  // elements of 16 bits, as of AVX-512
  const int64_t count = x.size(-1), rest = count % kVector;
  if (!x.is_cpu() || rest == 0) return function(x);
  return function(at::constant_pad_nd(x, {0, kVector - rest})).narrow(-1, 0, count);
}

}  // namespace hotswap
