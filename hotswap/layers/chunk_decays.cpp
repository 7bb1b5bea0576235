#include "hotswap/layers/chunk_decays.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <limits>

namespace hotswap {

ChunkDecays chunk_decays(const Tensor& sums, const std::optional<Tensor>& seq_idx, int64_t from) {
  const int64_t count = sums.size(2);
  const Tensor index = at::arange(count, at::TensorOptions().device(sums.device()));
  const Tensor later = index.unsqueeze(0).gt(index.unsqueeze(1));  // [count, count]
  const Tensor total = sums.narrow(2, count - 1, 1);
  ChunkDecays d{.pairs = at::exp(
                    at::sub(sums, sums.transpose(2, 3)).masked_fill(later, -std::numeric_limits<double>::infinity())),
                .entering = at::exp(sums),
                .leaving = at::exp(at::sub(total, sums)),
                .through = at::exp(total)};
  if (!seq_idx) return d;
  const Tensor seq = seq_idx->narrow(1, from, count), before = seq_idx->narrow(1, std::max<int64_t>(0, from - 1), 1);
  const Tensor last = seq.narrow(1, count - 1, 1);
  const auto kept = [](Tensor& decay, const Tensor& same) {  // [batch, count]
    decay = at::mul(decay, same.unsqueeze(1).unsqueeze(-1));
  };
  d.pairs = at::mul(d.pairs, seq.unsqueeze(2).eq(seq.unsqueeze(1)).unsqueeze(1));
  kept(d.entering, seq.eq(before));
  kept(d.leaving, seq.eq(last));
  kept(d.through, last.eq(before));
  return d;
}

}  // namespace hotswap
