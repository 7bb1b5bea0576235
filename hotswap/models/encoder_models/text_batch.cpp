#include "hotswap/models/encoder_models/text_batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "hotswap/base/error.h"

namespace hotswap {

int64_t TextBatch::longest() const {
  return packed() ? *std::max_element(lengths.begin(), lengths.end()) : ids.size(1);
}

Tensor TextBatch::starts() const {
  std::vector<int32_t> starts = {0};
  for (const int64_t length : lengths) starts.push_back(starts.back() + static_cast<int32_t>(length));
  return at::tensor(starts, at::kInt).to(ids.device());
}

Tensor TextBatch::positions() const {
  if (!packed()) return at::arange(ids.size(1), ids.options()).unsqueeze(0);
  std::vector<int64_t> positions;
  positions.reserve(ids.size(1));
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) positions.push_back(i);
  }
  return at::tensor(positions, at::kLong).to(ids.device()).unsqueeze(0);
}

AttentionMetadata TextBatch::attention() const {
  if (packed()) return AttentionMetadata({.cu_seqlens = starts(), .max_seqlen = longest()});
  return AttentionMetadata({.padding = padding});
}

Tensor TextBatch::first_tokens(const Tensor& hidden) const {
  if (!packed()) return hidden.select(1, 0);
  return hidden.squeeze(0).index_select(0, starts().narrow(0, 0, sequences()).to(at::kLong));
}

Tensor TextBatch::last_tokens(const Tensor& hidden) const {
  if (packed()) return hidden.squeeze(0).index_select(0, at::sub(starts().narrow(0, 1, sequences()), 1).to(at::kLong));
  if (!padding.defined()) return hidden.select(1, ids.size(1) - 1);
  const Tensor last = at::argmax(at::mul(padding.to(at::kLong), positions()), 1);  // [rows]
  return hidden.flatten(0, 1).index_select(0, at::add(last, at::arange(ids.size(0), last.options()), ids.size(1)));
}

void check_lengths(const TextBatch& batch) {
  if (!batch.packed()) return;
  const int64_t sum = std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0});
  const bool positive = *std::min_element(batch.lengths.begin(), batch.lengths.end()) > 0;
  if (positive && batch.ids.size(0) == 1 && batch.ids.size(1) == sum && !batch.padding.defined()) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "lengths above 0 that add up to the tokens of one row without an attention_mask",
               .got = cat("lengths that add up to ", sum, positive ? "" : ", one of them 0", ", input_ids [",
                          join(batch.ids.sizes()), "]", batch.padding.defined() ? " and an attention_mask" : ""),
               .next = "put the sequences one after the other into a batch of one"});
}

}  // namespace hotswap
