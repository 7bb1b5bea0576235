#include <ATen/ops/empty.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/training/data.h"

namespace hotswap {

Tensor rows_of(const std::vector<int64_t>& stream, int64_t first, int64_t rows, int64_t columns) {
  const auto size = static_cast<int64_t>(stream.size());
  if (first < 0 || rows <= 0 || columns <= 0 || columns > (size - first) / rows) {
    throw Error({.wanted = cat(rows, " rows of ", columns, " token ids from position ", first),
                 .got = cat("a text of ", size, " ids"),
                 .next = "give more text, or ask for fewer or shorter rows"});
  }
  Tensor batch = at::empty({rows, columns}, at::TensorOptions(at::kLong));
  std::copy_n(stream.begin() + first, rows * columns, batch.mutable_data_ptr<int64_t>());
  return batch;
}

std::vector<Tensor> batches_of(const std::vector<int64_t>& stream, BatchShape shape, int64_t steps) {
  const int64_t ids = shape.rows * shape.columns;
  const int64_t whole = ids > 0 ? static_cast<int64_t>(stream.size()) / ids : 0;
  if (steps == 0 || whole == 0) steps = std::max<int64_t>(1, whole);  // none whole: rows_of says what is missing
  std::vector<Tensor> batches;
  for (int64_t step = 0; step < steps; ++step) {
    batches.push_back(rows_of(stream, whole > 0 ? step % whole * ids : 0, shape.rows, shape.columns));
  }
  return batches;
}

}  // namespace hotswap
