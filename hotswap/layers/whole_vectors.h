// sigmoid, silu and softplus of rows x [..., n] whose bits do not depend on which rows stand beside a row. On a CPU
// torch computes the last elements of a tensor, which fill no vector, by another formula than the others; here each row
// fills whole ones. tanh, exp and gelu have no such end (findings/torch_sigmoid_of_the_last_elements.sh).
#pragma once

#include <ATen/core/Tensor.h>

namespace hotswap {

at::Tensor row_sigmoid(const at::Tensor& x);
at::Tensor row_silu(const at::Tensor& x);
at::Tensor row_softplus(const at::Tensor& x);

}  // namespace hotswap
