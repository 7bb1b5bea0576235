// What is to be computed in float32 at least.
#pragma once

#include <ATen/core/Tensor.h>

namespace hotswap {

inline at::Tensor wide(const at::Tensor& t) { return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat); }

}  // namespace hotswap
