// A tensor times a multiplier of the config, which is 1 in most families.
#pragma once

#include <ATen/core/Tensor.h>

namespace hotswap {

inline at::Tensor multiplied(const at::Tensor& t, double by) { return by == 1 ? t : t.mul(by); }

}  // namespace hotswap
