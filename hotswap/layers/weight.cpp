#include "hotswap/layers/weight.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include <array>

#include "hotswap/base/error.h"
#include "hotswap/layers/gguf_dequant.h"

namespace hotswap {
namespace {

struct Row {
  WeightFormat format;
  const char* name;
  const char* ggml;  // the block type, where it is one
};
constexpr WeightFormat kToldByRowBytes[] = {WeightFormat::kQ8_0, WeightFormat::kQ4_0, WeightFormat::kQ4_1};
constexpr std::array<Row, 17> kFormats = {{{WeightFormat::kPlain, "plain", nullptr},
                                           {WeightFormat::kQ8_0, "q8_0", "Q8_0"},
                                           {WeightFormat::kQ4_0, "q4_0", "Q4_0"},
                                           {WeightFormat::kQ4_1, "q4_1", "Q4_1"},
                                           {WeightFormat::kQ5_0, "q5_0", "Q5_0"},
                                           {WeightFormat::kQ4_K, "q4_k", "Q4_K"},
                                           {WeightFormat::kQ5_K, "q5_k", "Q5_K"},
                                           {WeightFormat::kQ6_K, "q6_k", "Q6_K"},
                                           {WeightFormat::kInt8, "int8", nullptr},
                                           {WeightFormat::kInt4, "int4", nullptr},
                                           {WeightFormat::kE4m3, "e4m3", nullptr},
                                           {WeightFormat::kTable16, "table16", nullptr},
                                           {WeightFormat::kInt4G32, "int4_g32", nullptr},
                                           {WeightFormat::kInt4G64, "int4_g64", nullptr},
                                           {WeightFormat::kInt4G128, "int4_g128", nullptr},
                                           {WeightFormat::kE4m3G128, "e4m3_g128", nullptr},
                                           {WeightFormat::kMxfp4, "mxfp4", "MXFP4"}}};

const Row& row_of(WeightFormat format) { return kFormats.at(static_cast<size_t>(format)); }

const GgufType& blocks_of(WeightFormat format) { return *find_gguf_type(std::string(row_of(format).ggml)); }

// Weights and bytes of a block; of a format without blocks 0.
std::pair<int64_t, int64_t> block_of(WeightFormat format) {
  if (const auto layout = block_layout_of(format))
    return {layout->columns, BlockLayout::kScaleBytes + layout->code_bytes()};
  if (row_of(format).ggml == nullptr) return {0, 0};
  return {blocks_of(format).block, static_cast<int64_t>(blocks_of(format).block_size)};
}

Tensor nibbles_of(const Tensor& bytes) {  // [out, in / 2] -> [out, in], the low one first
  const Tensor low = at::bitwise_and(bytes, 15), high = at::bitwise_right_shift(bytes, 4);
  return at::stack({low, high}, -1).view({bytes.size(0), -1});
}

Tensor codes_of(const Weight& w, at::ScalarType wide) {
  if (w.format == WeightFormat::kInt4) return nibbles_of(w.data).to(wide);
  if (w.format != WeightFormat::kTable16) return w.data.to(wide);
  return w.table.to(wide).index_select(0, nibbles_of(w.data).to(at::kInt).view({-1})).view({w.rows(), w.columns()});
}

// Each element's own of what its group shares: [rows / group_rows, groups] -> [out, in].
Tensor spread_groups(const Tensor& shared, const Weight& w, at::ScalarType wide) {
  const Tensor values = shared.to(wide);
  if (values.numel() == 1) return values.view({1, 1});
  const Tensor rows = w.group_rows == 1 || values.size(0) == 1
                          ? values
                          : values.repeat_interleave(w.group_rows, 0).narrow(0, 0, w.rows());
  if (rows.size(1) == 1) return rows;
  const Tensor group =
      w.order.defined()
          ? w.order.to(at::kLong)
          : at::arange(w.columns(), w.data.options().dtype(at::kLong)).div(w.group, /*rounding_mode=*/"floor");
  return rows.index_select(1, group);
}

}  // namespace

const char* name_of(WeightFormat format) { return row_of(format).name; }

std::optional<WeightFormat> weight_format_of(const std::string& name) {
  for (const Row& row : kFormats) {
    if (name == row.name) return row.format;
  }
  return std::nullopt;
}

std::string weight_format_names() {
  std::vector<std::string> names;
  for (const Row& row : kFormats) names.emplace_back(row.name);
  return join(names);
}

std::optional<BlockLayout> block_layout_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt4G32:
      return BlockLayout{BlockCodes::kInt4, 32};
    case WeightFormat::kInt4G64:
      return BlockLayout{BlockCodes::kInt4, 64};
    case WeightFormat::kInt4G128:
      return BlockLayout{BlockCodes::kInt4, 128};
    case WeightFormat::kE4m3G128:
      return BlockLayout{BlockCodes::kE4m3, 128};
    default:
      return std::nullopt;
  }
}

std::vector<int64_t> Weight::shape() const {
  if (!encoded()) return data.sizes().vec();
  std::vector<int64_t> shape = logical_shape;
  if (transposed) std::swap(shape.at(1), shape.at(2));
  return shape;
}

Weight Weight::of_expert(int64_t expert) const {
  if (!encoded()) return {.data = data.select(0, expert)};
  return {.format = format, .data = data.select(0, expert), .logical_shape = {rows(), columns()}};
}

Tensor Weight::dequantised(at::ScalarType dtype) const {
  if (!encoded()) return data.to(dtype);
  if (of_experts()) {
    Tensor all = at::empty(shape(), data.options().dtype(dtype));
    for (int64_t e = 0; e < all.size(0); ++e) {
      const Tensor one = of_expert(e).dequantised(dtype);
      all.select(0, e).copy_(transposed ? one.t() : one);
    }
    return all;
  }
  if (row_of(format).ggml != nullptr) return hotswap::dequantised(data, blocks_of(format), columns(), dtype);
  if (const auto layout = block_layout_of(format)) return dequantised_blocks(data, *layout, dtype);
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  Tensor values = codes_of(*this, wide);
  if (zeros.defined()) values = at::sub(values, spread_groups(zeros, *this, wide));
  if (scales.defined()) values = at::mul(values, spread_groups(scales, *this, wide));
  if (global_scale.defined()) values = at::mul(values, global_scale.to(wide));
  return values.to(dtype);
}

std::optional<Weight> Weight::with_rows(const std::function<Tensor(const Tensor&)>& move) const {
  Weight moved = *this;
  moved.data = move(data);
  for (Tensor* shared : {&moved.scales, &moved.zeros}) {
    if (!shared->defined() || shared->numel() == 1) continue;
    if (group_rows != 1) return std::nullopt;
    *shared = move(*shared);
  }
  if (encoded()) moved.logical_shape.at(0) = moved.data.size(0);
  return moved;
}

void Weight::each_tensor(const std::function<void(Tensor&)>& visit) {
  for (Tensor* tensor : {&data, &scales, &zeros, &global_scale, &table, &order}) {
    if (tensor->defined()) visit(*tensor);
  }
}

Weight experts_weight_of(const Tensor& data, WeightFormat format) {
  if (format == WeightFormat::kPlain) return {.data = data};
  const auto [columns, bytes] = block_of(format);
  if (bytes == 0 || data.dim() != 3 || data.scalar_type() != at::kByte || data.size(2) % bytes != 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("experts' weights as ", name_of(format), ", uint8 [experts, rows, whole blocks]"),
                 .got = cat(data.scalar_type(), " [", join(data.sizes()), "]"),
                 .next = "check the format and the width of the weights"});
  }
  return {
      .format = format, .data = data, .logical_shape = {data.size(0), data.size(1), data.size(2) / bytes * columns}};
}

void make_plain(Weight& weight, at::ScalarType dtype) {
  if (!weight.encoded()) return;
  weight = {.data = weight.dequantised(dtype), .shard = weight.shard};
  weight.data.set_requires_grad(true);
}

std::optional<WeightFormat> weight_format_of_ggml(const std::string& type) {
  for (const Row& row : kFormats) {
    if (row.ggml != nullptr && type == row.ggml) return row.format;
  }
  return std::nullopt;
}

Weight weight_of(const Tensor& data, int64_t columns) {
  if (data.is_floating_point()) return {.data = data};
  for (const WeightFormat format : kToldByRowBytes) {
    const GgufType& type = blocks_of(format);
    if (columns % type.block == 0 && data.dim() == 2 && data.scalar_type() == at::kByte &&
        data.size(1) == columns / type.block * static_cast<int64_t>(type.block_size)) {
      return {.format = format, .data = data, .logical_shape = {data.size(0), columns}};
    }
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("packed rows of ", columns, " weights, in blocks of 32 of Q8_0, Q4_0 or Q4_1"),
               .got = cat("[", join(data.sizes()), "] bytes"),
               .next = "check that the config and the weights belong together"});
}

}  // namespace hotswap
