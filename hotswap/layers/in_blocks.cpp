#include "hotswap/layers/in_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

namespace hotswap {
namespace {

// The longest block that divides a group and the columns.
std::optional<WeightFormat> fitting_format(const Weight& w) {
  for (const WeightFormat format :
       {WeightFormat::kInt4G128, WeightFormat::kInt4G64, WeightFormat::kInt4G32, WeightFormat::kE4m3G128}) {
    const BlockLayout layout = *block_layout_of(format);
    const WeightFormat from = layout.codes == BlockCodes::kE4m3 ? WeightFormat::kE4m3 : WeightFormat::kInt4;
    if (from == w.format && w.group % layout.columns == 0 && w.columns() % layout.columns == 0) return format;
  }
  return std::nullopt;
}

// Of each block its own: [rows / group_rows, groups], or one element, -> [out, blocks].
Tensor of_blocks(const Tensor& shared, const Weight& w, int64_t columns) {
  const int64_t blocks = w.columns() / columns;
  if (shared.numel() == 1) return shared.reshape({1, 1}).expand({w.rows(), blocks});
  Tensor rows = shared;
  if (w.group_rows > 1 && shared.size(0) > 1) {
    rows = shared.repeat_interleave(w.group_rows, 0).narrow(0, 0, w.rows());
  }
  if (rows.size(1) > 1) {
    const Tensor first = at::arange(blocks, rows.options().dtype(at::kLong)) * columns;
    rows = rows.index_select(1, first.div(w.group, /*rounding_mode=*/"floor"));
  }
  return rows.expand({w.rows(), blocks});
}

bool all_of(const Tensor& flags) { return flags.all().item<bool>(); }

// float32 scales as int32 with the zeros in their low bytes; undefined where these are in use.
Tensor heads_of(const Tensor& scales, const Weight& w, int64_t columns) {
  Tensor heads = scales.view(at::kInt);
  if (w.format != WeightFormat::kInt4) return heads;
  if (!all_of(at::bitwise_and(heads, BlockLayout::kZero) == 0)) return {};
  if (!w.zeros.defined()) return heads;
  const Tensor zeros = of_blocks(w.zeros.to(at::kInt), w, columns);
  if (!all_of(zeros.ge(0).logical_and(zeros.le(BlockLayout::kZero)))) return {};
  return at::bitwise_or(heads, zeros);
}

// Two codes a byte in the file's order, columns 2 i and 2 i + 1, -> columns i and 16 + i of 32.
Tensor pairs_of_32(const Tensor& bytes, int64_t columns) {
  const Tensor low = at::bitwise_and(bytes, 15), high = at::bitwise_right_shift(bytes, 4);
  const Tensor codes =
      at::stack({low, high}, -1).view({bytes.size(0), -1, columns / (2 * BlockLayout::kPairs), 2, BlockLayout::kPairs});
  return at::bitwise_or(codes.select(3, 0), at::bitwise_left_shift(codes.select(3, 1), 4))
      .view({bytes.size(0), -1, columns / 2});
}

}  // namespace

std::optional<Weight> in_blocks(const Weight& w) {
  constexpr float kMaxScale = 0x1p100F;
  const auto format = fitting_format(w);
  const auto layout = format ? block_layout_of(*format) : std::nullopt;
  if (!layout || w.order.defined() || w.global_scale.defined() || !w.scales.defined()) return std::nullopt;
  const bool e4m3 = w.format == WeightFormat::kE4m3;
  const Tensor scales = of_blocks(w.scales.to(at::kFloat), w, layout->columns).contiguous();
  if (!all_of(scales.abs().lt(kMaxScale))) return std::nullopt;  // not of NaN either
  if (e4m3 && (w.zeros.defined() || all_of(w.data.view(at::kByte).bitwise_and(127).ne(127)) == false)) {
    return std::nullopt;
  }
  const Tensor heads = heads_of(scales, w, layout->columns);
  if (!heads.defined()) return std::nullopt;
  const Tensor codes = e4m3 ? w.data.contiguous().view(at::kByte).view({w.rows(), -1, layout->columns})
                            : pairs_of_32(w.data, layout->columns);
  const Tensor head_bytes = heads.contiguous().view(at::kByte).view({w.rows(), -1, BlockLayout::kScaleBytes});
  return Weight{.format = *format,
                .data = at::cat({head_bytes, codes}, -1).view({w.rows(), -1}),
                .logical_shape = w.logical_shape,
                .shard = w.shard};
}

}  // namespace hotswap
