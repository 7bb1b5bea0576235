#include "hotswap/layers/whole_vectors.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

namespace hotswap {
namespace {

template <class Function>
at::Tensor in_whole_vectors(const at::Tensor& x, const Function& function) {
  constexpr int64_t kVector = 32;  // elements of 16 bits, as of AVX-512
  const int64_t count = x.size(-1), rest = count % kVector;
  if (!x.is_cpu() || rest == 0) return function(x);
  return function(at::constant_pad_nd(x, {0, kVector - rest})).narrow(-1, 0, count);
}

}  // namespace

at::Tensor row_sigmoid(const at::Tensor& x) {
  return in_whole_vectors(x, [](const at::Tensor& all) { return at::sigmoid(all); });
}

at::Tensor row_silu(const at::Tensor& x) {
  return in_whole_vectors(x, [](const at::Tensor& all) { return at::silu(all); });
}

at::Tensor row_softplus(const at::Tensor& x) {
  return in_whole_vectors(x, [](const at::Tensor& all) { return at::softplus(all); });
}

}  // namespace hotswap
