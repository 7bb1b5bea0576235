#include "hotswap/kernelize/bind/example.h"

#include <ATen/ops/randn.h>

namespace hotswap::binding {

Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::TensorOptions().dtype(at::kFloat)); }

}  // namespace hotswap::binding
