#include "hotswap/layers/weight_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

namespace hotswap {
namespace {

constexpr int64_t kScaleBytes = 4, kZero = 255, kPairs = 16;  // of 32 columns, 16 bytes of two codes each

struct BlockRow {
  WeightFormat format, from;
  int64_t columns;
};
constexpr BlockRow kBlocks[] = {{WeightFormat::kInt4G128, WeightFormat::kInt4, 128},
                                {WeightFormat::kInt4G64, WeightFormat::kInt4, 64},
                                {WeightFormat::kInt4G32, WeightFormat::kInt4, 32},
                                {WeightFormat::kE4m3G128, WeightFormat::kE4m3, 128}};

const BlockRow* find_row(WeightFormat format) {
  for (const BlockRow& row : kBlocks) {
    if (row.format == format) return &row;
  }
  return nullptr;
}

// The largest block that divides a group and the columns.
const BlockRow* fitting_row(const Weight& w) {
  for (const BlockRow& row : kBlocks) {
    if (row.from == w.format && w.group % row.columns == 0 && w.columns() % row.columns == 0) return &row;
  }
  return nullptr;
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
  if (!all_of(at::bitwise_and(heads, kZero) == 0)) return {};
  if (!w.zeros.defined()) return heads;
  const Tensor zeros = of_blocks(w.zeros.to(at::kInt), w, columns);
  if (!all_of(zeros.ge(0).logical_and(zeros.le(kZero)))) return {};
  return at::bitwise_or(heads, zeros);
}

// Two codes a byte in the file's order, columns 2 i and 2 i + 1, -> columns i and 16 + i of 32.
Tensor pairs_of_32(const Tensor& bytes, int64_t columns) {
  const Tensor low = at::bitwise_and(bytes, 15), high = at::bitwise_right_shift(bytes, 4);
  const Tensor codes = at::stack({low, high}, -1).view({bytes.size(0), -1, columns / (2 * kPairs), 2, kPairs});
  return at::bitwise_or(codes.select(3, 0), at::bitwise_left_shift(codes.select(3, 1), 4))
      .view({bytes.size(0), -1, columns / 2});
}

}  // namespace

bool is_block_format(WeightFormat format) { return find_row(format) != nullptr; }

std::optional<Weight> in_blocks(const Weight& w) {
  constexpr float kMaxScale = 0x1p100F;
  const BlockRow* row = fitting_row(w);
  if (row == nullptr || w.order.defined() || w.global_scale.defined() || !w.scales.defined()) return std::nullopt;
  const bool e4m3 = w.format == WeightFormat::kE4m3;
  const Tensor scales = of_blocks(w.scales.to(at::kFloat), w, row->columns).contiguous();
  if (!all_of(scales.abs().lt(kMaxScale))) return std::nullopt;  // not of NaN either
  if (e4m3 && (w.zeros.defined() || all_of(w.data.view(at::kByte).bitwise_and(127).ne(127)) == false)) {
    return std::nullopt;
  }
  const Tensor heads = heads_of(scales, w, row->columns);
  if (!heads.defined()) return std::nullopt;
  const Tensor codes =
      e4m3 ? w.data.contiguous().view(at::kByte).view({w.rows(), -1, row->columns}) : pairs_of_32(w.data, row->columns);
  const Tensor head_bytes = heads.contiguous().view(at::kByte).view({w.rows(), -1, kScaleBytes});
  return Weight{.format = row->format,
                .data = at::cat({head_bytes, codes}, -1).view({w.rows(), -1}),
                .logical_shape = w.logical_shape,
                .shard = w.shard};
}

Tensor dequantised_blocks(const Weight& w, at::ScalarType dtype) {
  const BlockRow& row = *find_row(w.format);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const bool e4m3 = row.from == WeightFormat::kE4m3;
  const int64_t code_bytes = e4m3 ? row.columns : row.columns / 2;
  const Tensor blocks = w.data.view({w.data.size(0), -1, kScaleBytes + code_bytes});
  const Tensor heads = blocks.narrow(-1, 0, kScaleBytes).contiguous().view(at::kInt);
  const Tensor bytes = blocks.narrow(-1, kScaleBytes, code_bytes);
  Tensor codes, scales = heads;
  if (e4m3) {
    codes = bytes.contiguous().view(at::kFloat8_e4m3fn).to(wide);
  } else {
    const Tensor pairs = bytes.reshape({w.data.size(0), -1, row.columns / (2 * kPairs), kPairs});
    const Tensor both = at::stack({at::bitwise_and(pairs, 15), at::bitwise_right_shift(pairs, 4)}, 3);
    codes = at::sub(both.view({w.data.size(0), -1, row.columns}).to(wide), at::bitwise_and(heads, kZero).to(wide));
    scales = at::bitwise_and(heads, ~kZero);
  }
  return at::mul(codes, scales.view(at::kFloat).to(wide)).to(dtype).view({w.data.size(0), -1});
}

}  // namespace hotswap
