#include "hotswap/models/formats/expert_tensors.h"

#include <ATen/ops/empty.h>

namespace hotswap {
namespace {

// Rows of `part` in what is joined, [experts, rows, ...].
at::Tensor rows_of_part(const at::Tensor& all, size_t part, size_t parts, bool interleaved) {
  const auto index = static_cast<int64_t>(part), count = static_cast<int64_t>(parts);
  const int64_t rows = all.size(1) / count;
  return interleaved ? all.slice(1, index, all.size(1), count) : all.narrow(1, index * rows, rows);
}

// One tensor of bytes, with nothing beside it.
bool is_blocks(const std::optional<Weight>& weight) {
  return weight && weight->encoded() && weight->data.scalar_type() == at::kByte && !weight->scales.defined() &&
         !weight->order.defined() && !weight->shard;
}

}  // namespace

std::vector<int64_t> joined_shape(std::vector<int64_t> part, size_t parts, const ExpertLayout& layout) {
  if (part.size() < 2) return part;
  part[1] *= static_cast<int64_t>(parts);
  if (layout.transposed && part.size() == 3) std::swap(part[1], part[2]);
  return part;
}

at::Tensor joined_rows(const std::vector<int64_t>& part, size_t parts, const ExpertLayout& layout, at::ScalarType dtype,
                  const ReadPart& read) {
  at::Tensor all = at::empty(joined_shape(part, parts, layout), at::TensorOptions().dtype(dtype));
  const at::Tensor rows = layout.transposed && all.dim() == 3 ? all.transpose(1, 2) : all;
  for (size_t i = 0; i < parts; ++i) rows_of_part(rows, i, parts, layout.interleaved).copy_(read(i));
  return all;
}

std::optional<Weight> joined_packed(size_t parts, const ExpertLayout& layout, const ReadPacked& read) {
  std::optional<Weight> all;
  for (size_t i = 0; i < parts; ++i) {
    std::optional<Weight> part = read(i);
    if (!is_blocks(part) || !part->of_experts() || (all && part->format != all->format)) return std::nullopt;
    if (!all) {
      all = *part;
      all->transposed = layout.transposed;
      if (parts == 1) return all;
      all->logical_shape[1] *= static_cast<int64_t>(parts);
      std::vector<int64_t> bytes = part->data.sizes().vec();
      bytes[1] *= static_cast<int64_t>(parts);
      all->data = at::empty(bytes, part->data.options());
    }
    rows_of_part(all->data, i, parts, layout.interleaved).copy_(part->data);
  }
  return all;
}

std::optional<Weight> stacked_packed(size_t experts, size_t parts, const ReadPacked& read) {
  std::optional<Weight> all;
  for (size_t i = 0; i < experts * parts; ++i) {
    const std::optional<Weight> one = read(i);
    if (!is_blocks(one) || one->of_experts() || (all && one->format != all->format)) return std::nullopt;
    const auto expert = static_cast<int64_t>(i / parts), part = static_cast<int64_t>(i % parts);
    const int64_t rows = one->rows();
    if (!all) {
      const auto count = static_cast<int64_t>(experts), whole = rows * static_cast<int64_t>(parts);
      all = Weight{.format = one->format,
                   .data = at::empty({count, whole, one->data.size(1)}, one->data.options()),
                   .logical_shape = {count, whole, one->columns()}};
    }
    all->data.select(0, expert).narrow(0, part * rows, rows).copy_(one->data);
  }
  return all;
}

}  // namespace hotswap
