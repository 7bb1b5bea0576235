// Tensors of all experts of a layer, [experts, rows, ...], as one: a file has gate and up apart, or each expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "hotswap/layers/weight.h"

namespace hotswap {

// Of the model's tensor; packed weights are always [experts, rows, bytes].
struct ExpertLayout {
  bool interleaved = false;  // rows of the parts alternate; else one part after the other
  bool transposed = false;   // matrices as [experts, columns, rows]
};

// Parts are read one after another: what is held beside the result is one of them.
using ReadPart = std::function<at::Tensor(size_t part)>;
using ReadPacked = std::function<std::optional<Weight>(size_t part)>;

// Of parts of this shape, [experts, rows, columns] or [experts, rows].
std::vector<int64_t> joined_shape(std::vector<int64_t> part, size_t parts, const ExpertLayout& layout);
at::Tensor joined_rows(const std::vector<int64_t>& part, size_t parts, const ExpertLayout& layout, at::ScalarType dtype,
                  const ReadPart& read);
// nullopt where one is plain, or not of the format of the others: then values are what they have in common.
std::optional<Weight> joined_packed(size_t parts, const ExpertLayout& layout, const ReadPacked& read);
// The same of matrices [rows, columns], of which each expert has `parts`, one after the other: part of expert e: e *
// parts + part.
std::optional<Weight> stacked_packed(size_t experts, size_t parts, const ReadPacked& read);

}  // namespace hotswap
