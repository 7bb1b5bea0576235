// From the pages of a step to the keys of its rows, for attention that takes keys in one piece.
#include <ATen/ops/cat.h>

#include "hotswap/layers/attention.h"

namespace hotswap {
namespace {

// Keys [0, length) of one row. -> [1, length, kv_heads, head_dim]
Tensor gathered(const Tensor& pages, const Tensor& table, int64_t length) {
  const int64_t needed = (length + pages.size(1) - 1) / pages.size(1);
  return pages.index_select(0, table.narrow(0, 0, needed)).flatten(0, 1).narrow(0, 0, length).unsqueeze(0);
}

// From `first` on, where each row's memory is one page and they stand side by side: how many rows have one length.
int64_t rows_of_one_length(const StepBatch& step, int64_t first) {
  int64_t end = first + 1;
  while (!step.exact_rows && end < step.batch() && step.lengths[end] == step.lengths[first]) ++end;
  return end - first;
}

}  // namespace

Tensor joined_rows(std::vector<Tensor> parts) { return parts.size() == 1 ? parts.front() : at::cat(parts, 0); }

std::vector<KeyRows> AttentionMetadata::key_rows(const Tensor& k, const Tensor& v) const {
  const StepBatch& step = *sequence_.step;
  const bool side_by_side = step.first_page >= 0;
  std::vector<KeyRows> all;
  for (int64_t first = 0; first < step.batch();) {
    const int64_t count = side_by_side ? rows_of_one_length(step, first) : 1, length = step.lengths[first];
    const int64_t page = step.first_page + (step.one_sequence ? 0 : first);
    const auto keys_of = [&](const Tensor& pages) {
      return side_by_side ? pages.narrow(0, page, count).narrow(1, 0, length)
                          : gathered(pages, step.block_table.select(0, first), length);
    };
    if (row_metadata_.size() <= all.size()) {  // once a forward, so that masks are made once
      row_metadata_.push_back(std::make_shared<AttentionMetadata>(SequenceInfo{.start = length - step.new_tokens}));
    }
    all.push_back({first, count, keys_of(k), keys_of(v), *row_metadata_[all.size()]});
    first += count;
  }
  return all;
}

}  // namespace hotswap
