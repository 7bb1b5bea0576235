// Which LoRA adapter each row of a batch computes with, while one forward runs on this thread. Layers that have
// adapters of rows read it (Linear::set_row_adapter): a layer's forward takes x only, as under torch's modes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace hotswap {

using at::Tensor;

class RowAdapters {
 public:
  static constexpr int64_t kNone = -1;
  // The adapter of each row of the batch, kNone for none. Empty, or kNone everywhere: no row has one.
  explicit RowAdapters(const std::vector<int64_t>& of_rows);
  ~RowAdapters();
  RowAdapters(const RowAdapters&) = delete;
  RowAdapters& operator=(const RowAdapters&) = delete;

  // Does the forward that runs on this thread have rows with adapters?
  static bool any();
  // Calls `adapted` with the rows of one adapter after another, and puts what it returns into those rows of y.
  // x: a row's part of the batch is x[row], or begins at that offset where the batch and other dimensions are one.
  using Adapted = std::function<Tensor(int64_t adapter, const Tensor& y, const Tensor& x)>;
  static Tensor apply(const Tensor& y, const Tensor& x, const std::vector<int64_t>& adapters, const Adapted& adapted);

 private:
  std::vector<int64_t> of_rows_;
  const RowAdapters* outer_;
};

}  // namespace hotswap
