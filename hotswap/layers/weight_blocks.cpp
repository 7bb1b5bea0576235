#include "hotswap/layers/weight_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

namespace hotswap {

at::Tensor dequantised_blocks(const at::Tensor& data, const BlockLayout& layout, at::ScalarType dtype) {
  using at::Tensor;
  constexpr int64_t kPairs = BlockLayout::kPairs, kZero = BlockLayout::kZero;
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t rows = data.size(0);
  const Tensor blocks = data.view({rows, -1, BlockLayout::kScaleBytes + layout.code_bytes()});
  const Tensor heads = blocks.narrow(-1, 0, BlockLayout::kScaleBytes).contiguous().view(at::kInt);
  const Tensor bytes = blocks.narrow(-1, BlockLayout::kScaleBytes, layout.code_bytes());
  Tensor codes, scales = heads;
  if (layout.codes == BlockCodes::kE4m3) {
    codes = bytes.contiguous().view(at::kFloat8_e4m3fn).to(wide);
  } else {
    const Tensor pairs = bytes.reshape({rows, -1, layout.columns / (2 * kPairs), kPairs});
    const Tensor both = at::stack({at::bitwise_and(pairs, 15), at::bitwise_right_shift(pairs, 4)}, 3);
    codes = at::sub(both.view({rows, -1, layout.columns}).to(wide), at::bitwise_and(heads, kZero).to(wide));
    scales = at::bitwise_and(heads, ~kZero);
  }
  return at::mul(codes, scales.view(at::kFloat).to(wide)).to(dtype).view({rows, -1});
}

}  // namespace hotswap
