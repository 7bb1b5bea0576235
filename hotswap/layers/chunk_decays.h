// What of a state is left from token to token, as a recurrence that runs chunk by chunk needs it: between a chunk's
// tokens, from the state before the chunk, and to the state after it.
#pragma once

#include <optional>

#include "hotswap/layers/module.h"

namespace hotswap {

struct ChunkDecays {
  Tensor pairs;              // [batch, heads, count, count]: of a token, row, what one before it left; 0 above
  Tensor entering, leaving;  // [batch, heads, count, 1]
  Tensor through;            // [batch, heads, 1, 1]
};

// Of tokens [from, from + count). sums: [batch, heads, count, 1], of the decays' logarithms up to each token of the
// chunk; seq_idx: [batch, time], which of the sequences packed into a row a token is of: nothing goes from one to
// another.
ChunkDecays chunk_decays(const Tensor& sums, const std::optional<Tensor>& seq_idx, int64_t from);

}  // namespace hotswap
