// Sequences that are packed into one row, as a recurrence that runs chunk by chunk sees them: which of a chunk's tokens
// see each other, the state before the chunk, and the state after it.
#pragma once

#include <algorithm>

#include "hotswap/layers/module.h"

namespace hotswap {

struct ChunkLinks {
  Tensor pairs;              // [batch, 1, time, time]
  Tensor entering, leaving;  // [batch, 1, time, 1]
  Tensor through;            // [batch, 1, 1, 1]: whether the state before the chunk is still there after it
};

// Of tokens [from, from + count). seq_idx: [batch, time]
inline ChunkLinks chunk_links(const Tensor& seq_idx, int64_t from, int64_t count) {
  const Tensor seq = seq_idx.narrow(1, from, count), before = seq_idx.narrow(1, std::max<int64_t>(0, from - 1), 1);
  const Tensor last = seq.narrow(1, count - 1, 1);
  const auto column = [](const Tensor& t) { return t.unsqueeze(1).unsqueeze(-1); };
  return {.pairs = seq.unsqueeze(2).eq(seq.unsqueeze(1)).unsqueeze(1),
          .entering = column(seq.eq(before)),
          .leaving = column(seq.eq(last)),
          .through = column(last.eq(before))};
}

}  // namespace hotswap
