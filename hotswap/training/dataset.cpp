#include "hotswap/training/dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {

PackedDataset::PackedDataset(std::vector<int64_t> stream, int64_t example_length)
    : stream_(std::move(stream)), length_(example_length) {
  if (length_ < 2 || size() == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "at least one example, of two tokens or more",
                 .got = cat("a text of ", stream_.size(), " tokens and examples of ", length_),
                 .next = "pass more text, or use shorter examples"});
  }
}

TrainingBatch PackedDataset::batch(const std::vector<int64_t>& examples) const {
  Tensor ids = at::empty({static_cast<int64_t>(examples.size()), length_}, at::TensorOptions(at::kLong));
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (const int64_t example : examples) {
    if (example < 0 || example >= size()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("an example below ", size()),
                   .got = cat(example),
                   .next = "use examples of this dataset"});
    }
    out = std::copy_n(stream_.begin() + example * length_, length_, out);
  }
  return {.input_ids = ids, .labels = ids};
}

Tensor rows_of(const std::vector<int64_t>& stream, int64_t first, int64_t rows, int64_t columns) {
  const auto size = static_cast<int64_t>(stream.size());
  if (first < 0 || rows <= 0 || columns <= 0 || columns > (size - first) / rows) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(rows, " rows of ", columns, " token ids from position ", first),
                 .got = cat("a text of ", size, " ids"),
                 .next = "pass more text, or use fewer or shorter rows"});
  }
  Tensor batch = at::empty({rows, columns}, at::TensorOptions(at::kLong));
  std::copy_n(stream.begin() + first, rows * columns, batch.mutable_data_ptr<int64_t>());
  return batch;
}

}  // namespace hotswap
