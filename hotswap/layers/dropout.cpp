#include "hotswap/layers/dropout.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

namespace hotswap {

Tensor seeded_dropout(const Tensor& x, double p, bool training) {
  if (!training || p == 0) return x;
  AdapterDropout once{.p = p};
  return at::mul(x, dropout_mask(x, p, once.next_seed()));
}

Tensor seeded_uniform(const Tensor& like, double from, double to) {
  AdapterDropout once;
  at::Generator generator = at::globalContext().defaultGenerator(like.device()).clone();
  generator.set_current_seed(once.next_seed());
  return at::empty_like(like).uniform_(from, to, generator);
}

}  // namespace hotswap
