// Text to rows of token ids: documents are joined into one stream and cut into rows of equal length; nothing is padded,
// the rest that fills no row is dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hotswap {

using at::Tensor;

// rows * columns ids of the stream from `first` on, as [rows, columns] int64. Error when the stream is too short.
Tensor rows_of(const std::vector<int64_t>& stream, int64_t first, int64_t rows, int64_t columns);

struct BatchShape {
  int64_t rows = 1, columns = 256;
};

// `steps` batches of that shape, in the order of the stream, without shuffling; steps 0: as many as there are. A stream
// that is too short for `steps` starts again.
std::vector<Tensor> batches_of(const std::vector<int64_t>& stream, BatchShape shape, int64_t steps = 0);

}  // namespace hotswap
