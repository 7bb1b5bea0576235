#include "hotswap/layers/row_adapters.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

thread_local const RowAdapters* rows_of_forward = nullptr;

// [rows, tokens, ...]: of ids [rows, tokens], where `columns` is 0.
Tensor by_row(const Tensor& t, int64_t rows, int64_t columns) {
  const int64_t tokens = columns == 0 ? t.numel() : t.numel() / std::max<int64_t>(1, columns);
  if (tokens % rows != 0) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = cat("a batch of ", rows, " rows, as the adapters of its rows say"),
                 .got = cat("[", join(t.sizes()), "]"),
                 .next = "report it with the model's config.json"});
  }
  return columns == 0 ? t.reshape({rows, tokens / rows}) : t.reshape({rows, tokens / rows, columns});
}

}  // namespace

RowAdapters::RowAdapters(const std::vector<int64_t>& of_rows) : of_rows_(of_rows), outer_(rows_of_forward) {
  const bool any = std::any_of(of_rows_.begin(), of_rows_.end(), [](int64_t adapter) { return adapter != kNone; });
  rows_of_forward = any ? this : nullptr;
}

RowAdapters::~RowAdapters() { rows_of_forward = outer_; }

bool RowAdapters::any() { return rows_of_forward != nullptr; }

Tensor RowAdapters::apply(const Tensor& y, const Tensor& x, const std::vector<int64_t>& adapters,
                          const Adapted& adapted) {
  const std::vector<int64_t>& of_rows = rows_of_forward->of_rows_;
  const auto rows = static_cast<int64_t>(of_rows.size());
  const Tensor in = by_row(x, rows, x.is_floating_point() ? x.size(-1) : 0);
  Tensor out = by_row(y.contiguous(), rows, y.size(-1));  // y itself: a product is only its caller's
  for (const int64_t adapter : adapters) {
    std::vector<int64_t> members;
    for (int64_t row = 0; row < rows; ++row) {
      if (of_rows[row] == adapter) members.push_back(row);
    }
    if (members.empty()) continue;
    if (static_cast<int64_t>(members.size()) == rows) return adapted(adapter, out, in).view(y.sizes());
    const Tensor at =
        at::from_blob(members.data(), {static_cast<int64_t>(members.size())}, at::TensorOptions(at::kLong))
            .to(y.device(), /*non_blocking=*/false, /*copy=*/true);
    out.index_copy_(0, at, adapted(adapter, out.index_select(0, at), in.index_select(0, at)));
  }
  return out.view(y.sizes());
}

}  // namespace hotswap
