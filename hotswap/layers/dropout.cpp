#include "hotswap/layers/dropout.h"

#include <ATen/ops/mul.h>

namespace hotswap {

Tensor seeded_dropout(const Tensor& x, double p, bool training) {
  if (!training || p == 0) return x;
  AdapterDropout once{.p = p};
  return at::mul(x, dropout_mask(x, p, once.next_seed()));
}

}  // namespace hotswap
